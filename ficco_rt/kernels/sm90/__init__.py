"""The GEMM for Hopper's tensor cores (wgmma, TMA): `src/sm90_gemm.cu`."""
