"""Every shipped schedule on the GPUs of this machine, verified: `python -m tools.gpu_check --help`."""
