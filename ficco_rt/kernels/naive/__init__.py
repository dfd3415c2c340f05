"""The kernels that any GPU runs: the plain twin of the GEMMs, a sum and a copy: `src/naive.cu`."""
