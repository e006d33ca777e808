"""What a log line is about, for whoever writes logs as data. The message says the same for people."""

from __future__ import annotations


def fields(**values: object) -> dict[str, object]:
    """`extra` of a log call, as far as its values are known: None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}
