"""Our GEMM beside cuBLAS on one GPU, checked first: `python -m tools.gemm_bench --help`."""
