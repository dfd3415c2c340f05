"""Measure a machine: small schedules that each cost one thing, their times, and the constants that explain them."""
