"""`sumwire switch`: the in-network aggregator on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sumwire.cli.base import click

if TYPE_CHECKING:
    from sumwire.aggregate.switch.switch import Switch

_SHOWN = ("merged", "completed", "duplicates", "late", "mismatches", "bytes_in", "bytes_out")
PORT = click.IntRange(1, 65535)


@click.command(context_settings={"show_default": True})
@click.option("--ports", required=True, help="Network devices that workers' packets come in by: veth0,veth1,...")
@click.option("--address", required=True, help="IPv4 address of this machine to which workers send.")
@click.option("--port", type=PORT, default=4660, help="UDP port to which workers send.")
@click.option(
    "--mode",
    type=click.Choice(["tc", "xdp", "generic", "user"]),
    default="tc",
    help="Where packets are added: in TC (any device), by XDP in the driver, by generic XDP, or in this process.",
)
@click.option(
    "--jobs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="TOML file with a table [[job]] for each job: number, secret, peers; see docs/in-network.md.",
)
@click.option(
    "--http-port", type=click.IntRange(0, 65535), help="Port of /, /metrics, /healthz and /stats.  [default: none]"
)
@click.option("--http-host", default="127.0.0.1", help="Address on which HTTP is served.")
@click.option(
    "--http-name", "http_names", multiple=True, help="Additional host name under which browsers reach the page."
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="Format of the log on stderr.")
@click.option(
    "--log-level", type=click.Choice(["info", "warning", "error"]), default="info", help="Least severe level to log."
)
def switch(ports: str, **options: Any) -> None:
    """Add workers' packets inside the kernel, on their way through this machine.

    Needs Linux 6.9 and root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. Everything else passes the ports untouched.
    With --mode user it needs neither: this process adds, and --ports only tell how long packets may be.
    Stop it with Ctrl-C or SIGTERM; however it ends, the programs are detached.
    """
    from sumwire.aggregate.switch.switch import run

    run(ports=[name for name in ports.split(",") if name], show=_show, **options)


def _show(switch: Switch, ended: Callable[[], bool]) -> None:
    """Live counters of each job and worker on a terminal; elsewhere a table at the end."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    def table() -> Table:
        out = Table("job", "worker", *(name.replace("_", " ") for name in _SHOWN))
        for job, found in switch.reports[0]["jobs"].items():
            for worker in found["workers"]:
                out.add_row(job, str(worker["rank"]), *(f"{worker[name]:,}" for name in _SHOWN))
        refused = ", ".join(f"{name} {count:,}" for name, count in switch.reports[0]["refused"].items() if count)
        out.caption = f"passed untouched: {refused or 'nothing'}"
        return out

    console = Console()
    if not console.is_terminal:
        switch.wait(ended)
        console.print(table())
        return
    with Live(table(), console=console, refresh_per_second=2) as live:

        def watch() -> bool:
            live.update(table())
            return ended()

        switch.wait(watch)
