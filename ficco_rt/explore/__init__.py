"""Sweeps over scenarios, schedules, parameters and machines on the virtual clock, and the losses that explain their
results.

Nothing in this package runs on a GPU or chooses a schedule: it makes tables.
"""
