"""The model of time beside kept measurements: `python -m tools.model_check --help`."""
