"""`sumwire serve`: the options of `sumwire.Server` on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sumwire.cli.base import FILE, click

COMMAND_DEFAULTS = {"port": 4650, "log_level": "info"}
"""The only defaults that differ from the class. Workers of a command need a port that they know, and its operator a log
of who connects; a program reads the free port from `Server.port`, and stays quiet."""

_MIB = ("memory", "max_frame")
"""Options in MiB, which the class has in bytes."""


def default_of(name: str) -> Any:
    """The default of a server option, taken from the class."""
    # Imported here: the server brings asyncio and TLS, which other commands do not need.
    from sumwire.aggregate.server.server import Server

    default = inspect.signature(Server).parameters[name].default
    return default >> 20 if name in _MIB else COMMAND_DEFAULTS.get(name, default)


class ServerOption(click.Option):
    """An option whose default is that of the class `Server`."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        return default_of(str(self.name))


def _option(*names: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(*names, cls=ServerOption, **settings)


POSITIVE = click.FloatRange(min=0, min_open=True)
PORT = click.IntRange(0, 65535)


@click.command(context_settings={"show_default": True})
@click.option("--workers", type=click.IntRange(1, 65536), required=True, help="Number of workers in every job.")
@_option("--host", help="Address to listen on; 0.0.0.0 for all.")
@_option("--port", type=PORT, help="Port of the first shard; further shards use the ports after it.")
@_option("--shards", type=click.IntRange(1, 64), help="Server processes; each adds a part of every tensor.")
@_option("--quorum", type=click.IntRange(min=1), help="Workers that a round waits for.  [default: all]")
@_option(
    "--linger",
    type=click.FloatRange(min=0),
    help="Seconds that a round with its quorum waits for further workers that are connected.",
)
@_option("--deadline", type=POSITIVE, help="Seconds until a round proceeds without missing workers.  [default: never]")
@_option("--timeout", type=POSITIVE, help="Seconds until a round that cannot proceed fails.")
@_option(
    "--scale-cap",
    type=click.FloatRange(min=1),
    help="Limit of a worker's scales, as a multiple of the median over workers.  [default: none]",
)
@_option("--first-round", type=click.IntRange(0, 2**63 - 1), help="First round id of a job.  [default: random]")
@_option("--token", envvar="SUMWIRE_TOKEN", help="Token that workers must present; prefer the environment variable.")
@click.option("--token-file", type=FILE, help="File with the token in its first line.")
@click.option("--require-token", is_flag=True, help="Refuse to start without a token.")
@click.option("--tls-cert", type=FILE, help="Certificate of this server; enables TLS.")
@click.option("--tls-key", type=FILE, help="Private key of the certificate.")
@click.option("--tls-ca", type=FILE, help="Authority that must have signed workers' certificates (mutual TLS).")
@_option("--upstream", metavar="HOST:PORT", help="Server that adds this one's sums to those of other racks.")
@_option("--ranks", metavar="FIRST-LAST", help="Ranks of this rack's workers, of all --workers.")
@_option("--upstream-token", envvar="SUMWIRE_UPSTREAM_TOKEN", help="Token of the upstream server.")
@click.option("--upstream-token-file", type=FILE, help="File with the upstream token in its first line.")
@click.option("--upstream-ca", type=FILE, help="Authority of the upstream server; enables TLS towards it.")
@click.option("--upstream-cert", type=FILE, help="Certificate of this rack for the upstream server.")
@click.option("--upstream-key", type=FILE, help="Private key of that certificate.")
@_option("--memory", type=click.IntRange(min=1), help="MiB that all rounds may hold per shard.")
@_option("--max-size", type=click.IntRange(1), help="Maximum number of coordinates of a tensor.")
@_option("--max-frame", type=click.IntRange(1, 4096), help="Maximum MiB of a frame of a Sketch or a Sparse tensor.")
@_option("--http-port", type=PORT, help="Port of /, /metrics, /healthz and /stats.  [default: none]")
@_option("--http-host", help="Address on which HTTP is served.")
@_option("--http-name", "http_names", multiple=True, help="Additional host name under which browsers reach the page.")
@_option("--log-format", type=click.Choice(["text", "json"]), help="Format of the log on stderr.")
@_option("--log-level", type=click.Choice(["info", "warning", "error"]), help="Least severe level to log.")
@click.pass_context
def serve(
    context: click.Context,
    /,
    memory: int,
    max_frame: int,
    token: str,
    token_file: str | None,
    require_token: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    ranks: str | None,
    upstream_token: str,
    upstream_token_file: str | None,
    upstream_ca: str | None,
    upstream_cert: str | None,
    upstream_key: str | None,
    **options: Any,
) -> None:
    """Run the parameter server, which adds workers' payloads.

    It joins terms and adds payloads of any codec, for any number of jobs, and never decompresses. Workers use
    sumwire.connect("host:port", ...) or attach(model, server="host:port"). Stop it with Ctrl-C or SIGTERM.

    With --upstream and --ranks it is a rack: it adds for some of a job's workers, and another server adds the racks.
    """
    from sumwire.aggregate.server.server import run

    token = _token(context, "token", token, token_file)
    if require_token and not token:
        raise click.UsageError("--require-token was given without a token: set SUMWIRE_TOKEN or give a --token-file")
    run(
        tls=_tls(tls_cert, tls_key, tls_ca),
        token=token,
        memory=memory << 20,
        max_frame=max_frame << 20,
        ranks=_ranks(ranks),
        upstream_token=_token(context, "upstream_token", upstream_token, upstream_token_file),
        upstream_tls=_upstream_tls(upstream_ca, upstream_cert, upstream_key),
        **options,
    )


def _token(context: click.Context, name: str, token: str, token_file: str | None) -> str:
    from click.core import ParameterSource

    from sumwire.aggregate.server.server import read_token

    option = "--" + name.replace("_", "-")
    exposed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if exposed:
        variable = f"SUMWIRE_{name.upper()}"
        click.echo(f"warning: {option} can be read in the list of processes; use {variable} or {option}-file", err=True)
    if token_file is not None:
        if exposed:
            raise click.UsageError(f"{option} and {option}-file were both given: give one of them")
        token = read_token(token_file)
    return token


def _ranks(text: str | None) -> tuple[int, int] | None:
    """Of "0-3", the first and the one after the last."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise click.UsageError(f"--ranks {text} is not FIRST-LAST: give --ranks 0-3, say, for four workers")
    return int(first), int(last) + 1


def _upstream_tls(ca: str | None, cert: str | None, key: str | None) -> tuple[str, str | None, str | None] | None:
    if ca is None and (cert or key):
        raise click.UsageError("--upstream-cert and --upstream-key need --upstream-ca, which turns TLS on")
    if (cert is None) != (key is None):
        raise click.UsageError("--upstream-cert and --upstream-key must be given together")
    return None if ca is None else (ca, cert, key)


def _tls(cert: str | None, key: str | None, ca: str | None) -> tuple[str, str, str | None] | None:
    if (cert is None) != (key is None) or (ca is not None and cert is None):
        raise click.UsageError("--tls-cert and --tls-key must be given together, and --tls-ca requires both")
    return None if cert is None or key is None else (cert, key, ca)
