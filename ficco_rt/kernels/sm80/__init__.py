"""The GEMM for NVIDIA's tensor cores since Ampere (mma.sync, cp.async): `src/sm80_gemm.cu`."""
