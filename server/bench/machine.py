"""What benchmarks of a model on this machine share: a prompt, and the machine's load around a report."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ...engine.bench.opened import OpenedModel
from .statistics import MachineLoad

TEXT = (
    "The lighthouse keeper wrote down the weather twice a day, in a ledger that had outlived three of his predecessors."
    " On Monday the wind came from the west and the sea was grey; on Tuesday the wind came from the west and the sea "
    "was green. He counted 12 ships, 7 of them under sail, and noted their names: Ariadne, Bella, Corvus, Dora, "
    "Ernestine, Fortuna and Grace. In the evening he trimmed the lamp, wound the clock, and read a page of the one "
    "book that he owned."
)


def prompt_ids(opened: OpenedModel, text: Path | None, most: int | None = None) -> list[int]:
    """Token ids of a text file, or of a built-in text; the first `most` of them."""
    content = TEXT if text is None else text.read_text()
    ids = opened.model.tokenizer.encode(content, add_special=True, parse_special=False)
    return list(ids[:most])


def wide_console() -> Console:
    """For tables: a terminal's own width, and enough for any of them where there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


@contextmanager
def loaded_machine() -> Generator[None]:
    """Prints the machine's load before and after what runs inside."""
    print(f"machine before: {MachineLoad.now().text()}")
    yield
    print(f"machine after:  {MachineLoad.now().text()}")
