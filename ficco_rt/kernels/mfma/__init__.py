"""The GEMM for AMD's matrix cores: `src/mfma_gemm.hip`."""
