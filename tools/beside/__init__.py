"""This checkout beside another one: is it slower? See `python -m tools.beside --help`."""
