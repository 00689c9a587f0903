"""Tables of a report for the reader at the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from diti.pages.blocks import Table

STYLES = {"": "", "best": "bold", "paper": "dim", "baseline": "italic"}


def print_table(table: Table) -> None:
    """Title, rows and note."""
    shown = RichTable(title=table.title, caption=table.note or None)
    for place, heading in enumerate(table.columns):
        shown.add_column(heading, justify="left" if place == 0 else "right")
    for row in table.rows:
        shown.add_row(*(Text(cell.text, style=STYLES[cell.tone]) for cell in row))
    Console().print(shown)
