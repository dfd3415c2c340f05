"""Sweeps of scenarios, schedules, parameters and machines on the virtual clock; the losses that shape their results.

Nothing here runs on a GPU, and nothing here decides for the user: it makes tables.
"""
