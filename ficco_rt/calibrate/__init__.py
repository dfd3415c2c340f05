"""Measures a machine: runs probes, which are small schedules that each measure one cost, and fits constants to their
times."""
