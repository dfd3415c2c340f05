"""The schedule language: text in, a checked syntax tree out. Importing it loads no grammar."""

from .diagnostics import Diagnostic, Note, ScheduleError, Span
from .format import format_text
from .parser import parse, parse_bytes

__all__ = ["Diagnostic", "Note", "ScheduleError", "Span", "format_text", "parse", "parse_bytes"]
