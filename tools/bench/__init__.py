"""The shipped schedules beside what people use today, several GPUs, one run: `python -m tools.bench --help`."""
