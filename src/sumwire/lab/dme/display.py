"""Tables and bars as all three experiments show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def plain_table(title: str, first: str, *others: str, caption: str) -> Table:
    """In the house's look: text in the first column, numbers in the others."""
    shown = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    shown.add_column(first, no_wrap=True, vertical="bottom")
    for heading in others:
        shown.add_column(heading, justify="right", no_wrap=True)
    return shown


@contextmanager
def watched(out: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar; call what it gives after each step."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
