"""With this folder on PYTHONPATH ficco is installed in every process of Python: for tests that start processes."""

import ficco_rt.torch

ficco_rt.torch.install()
