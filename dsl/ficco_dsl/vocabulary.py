"""Words of the language that are not keywords: built-in names, functions, types, engines, words of attributes."""

from __future__ import annotations

from collections.abc import Mapping

BUILTINS = ("rank", "ranks", "peers", "all")
DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")
WITHIN = (*DTYPES, "tf32")  # what a claim admits: roundings to a type, or of a product's fp32 operands
# Which elements of a tensor as it is stored share a scale: all of a rank's, those of a row, or those of a block.
SCALINGS = ("tensor", "row", "1x128", "128x128")
ENGINES = ("copy", "sm", "nccl")

# name -> least and most arguments (None: any number), and how a call is written
FUNCTIONS: Mapping[str, tuple[int, int | None, str]] = {
    "reversed": (1, 1, "reversed(set)"),
    "min": (1, None, "min(a, b, ...) or min(list)"),
    "max": (1, None, "max(a, b, ...) or max(list)"),
    "sum": (1, 1, "sum(list)"),
    "len": (1, 1, "len(list)"),
    "ceil": (2, 2, "ceil(a, b)"),
    "part": (2, 2, "part(extent, i of n)"),
    "rows": (1, 1, "rows(tensor)"),
    "cols": (1, 1, "cols(tensor)"),
}

# Functions of a finished sum -> how a statement or a claim applies them. The first argument is the sum, another one is
# what its function is multiplied by.
OF_SUMS: Mapping[str, str] = {
    "gelu": "gelu(sum)", "gelu_tanh": "gelu_tanh(sum)", "silu": "silu(sum)", "silu_mul": "silu_mul(sum, factor)",
}  # fmt: skip

# What stands after an attribute's `=`: one of these words, a string, or (all others) a number.
WORDS = {
    "engine": ENGINES, "priority": ("high", "normal", "low"), "order": ("text", "auto"), "kernel": ("vendor",),
    "scale": ("pow2",),
}  # fmt: skip
NAMED = ("kernel",)  # … or also a name, which the language does not know
STRINGS = ("host",)
LEFT = "nccl"  # the word that `leave` takes, beside bytes and multiprocessors
RESOURCES = ("priority", "smem", "residency", "sms", "leave", "order", "kernel", "fast", "scale")
ON_QUEUE = ("engine", *RESOURCES)
OF_COLLECTIVES = ("ctas", "threads")  # on a queue of the vendor's collectives alone
ON_KERNEL = ("host", "grid", "block", "smem")
