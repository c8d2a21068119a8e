"""What commands share: error handling, and types of options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sumwire.errors import ConfigError, SumwireError, install_hint

__all__ = ["FILE", "SEED", "Commands", "checked", "click", "figure_option", "json_option"]

# Commands import click from here, so that the one message about a missing click comes first.
try:
    import click
except ModuleNotFoundError as error:
    print(f"sumwire: the command line needs {error.name}: {install_hint('cli')}", file=sys.stderr)
    raise SystemExit(2) from None

T = TypeVar("T")

FILE = click.Path(exists=True, dir_okay=False)
SEED = click.IntRange(0, 2**32 - 1)


class MissingPackage(click.ClickException):
    """An optional package is not installed."""

    exit_code = 2


class Commands(click.Group):
    """Reports an error that a user can fix in one line; any other error is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SumwireError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "sumwire"):
                raise
            # Only demo, lab and plan need more than click.
            raise MissingPackage(f"{ctx.invoked_subcommand} needs {package}: {install_hint('lab')}") from error


def figure_option(name: str, plot: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option for the file that a figure is saved to."""
    return click.option(
        "--figure",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        default=Path(name),
        help=f"File for the plot of {plot} (.svg, .png or .pdf).",
    )


def json_option() -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option for the file that measurements are appended to."""
    from sumwire.lab.record import HELP, OPTION

    path = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option(OPTION, "results", type=path, help=f"{HELP[0].upper()}{HELP[1:]}.")


def checked(parse: Callable[[], T]) -> T:
    """The result of `parse()`; its `ConfigError` becomes an error of the option."""
    try:
        return parse()
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
