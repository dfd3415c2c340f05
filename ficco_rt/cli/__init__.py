"""`ficco-run` and `ficco VERB`: the only place that prints, writes files and exits."""
