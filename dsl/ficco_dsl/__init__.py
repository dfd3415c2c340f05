"""The schedule language: parses text into a checked syntax tree. Importing the package does not load the grammar."""

from .diagnostics import Diagnostic, Note, ScheduleError, Span
from .format import format_text
from .parser import parse, parse_bytes

__all__ = ["Diagnostic", "Note", "ScheduleError", "Span", "format_text", "parse", "parse_bytes"]
