"""The GEMM of AMD's matrix cores: `src/mfma_gemm.hip`."""
