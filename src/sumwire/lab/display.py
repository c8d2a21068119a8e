"""The common look of experiments: tables, progress bars and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sumwire.errors import ConfigError

FORMATS = (".svg", ".png", ".pdf")

# From the palette of Okabe and Ito, which color-blind readers can distinguish.
BLUE, SKY, GREEN, ORANGE, PURPLE, AMBER = "#0072B2", "#3399DD", "#009E73", "#D55E00", "#AA4499", "#E69F00"
INK, FAINT, SUBTITLE = "#222222", "#8a8a8a", "#555555"

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "svg.hashsalt": "sumwire",  # equal data, equal bytes
}


def plain_table(title: str, first: str, *others: str, caption: str = "") -> Table:
    """A table with text in the first column and numbers in the others."""
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
        shown.add_column(heading, justify="right")
    return shown


def progress_bars(console: Console) -> Progress:
    """Bars with a description, a count and the elapsed time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


@contextmanager
def progress_bar(console: Console, description: str, total: int) -> Iterator[Callable[[], None]]:
    """One bar; the context yields the function that advances it."""
    with progress_bars(console) as progress:
        task = progress.add_task(description, total=total)
        yield lambda: progress.advance(task)


def check_path(path: Path) -> None:
    """Raise `ConfigError` for a path that a figure cannot be saved to, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot draw {str(path)!r}: name a file that ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot draw {str(path)!r}: there is no directory {str(path.parent)!r}, create it first")


def draw_grid(axes: Axes) -> None:
    axes.grid(color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    # Without a date, equal data gives equal bytes.
    figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None, dpi=150)
