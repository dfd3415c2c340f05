"""The GEMM of Hopper's tensor cores (wgmma, TMA): `src/sm90_gemm.cu`."""
