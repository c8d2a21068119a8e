"""TLS from files, for both ends: who has the job's authority, may talk."""

from __future__ import annotations

import ssl
from pathlib import Path

from sumwire.errors import ConfigError


def server_context(certificate: str | Path, key: str | Path, authority: str | Path | None) -> ssl.SSLContext:
    """For a server. With an `authority`, workers must show a certificate that it has signed (mutual TLS)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, certificate, key, authority)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def worker_context(
    authority: str | Path, certificate: str | Path | None = None, key: str | Path | None = None
) -> ssl.SSLContext:
    """For a worker: the server's certificate must be signed by `authority`, and name the host that is connected to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, certificate, key, authority)
    return context


def _load(
    context: ssl.SSLContext, certificate: str | Path | None, key: str | Path | None, authority: str | Path | None
) -> None:
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")  # never ask a terminal for one
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(path) for path in (certificate, key, authority) if path is not None)
        raise ConfigError(f"TLS files ({files}) cannot be used: {error}") from None
