"""Facts about schedules, plans and runs, in words, records and pictures. Nothing here prints or exits."""
