"""Kernels that run on any GPU: a plain GEMM, a sum and a copy (`src/naive.cu`)."""
