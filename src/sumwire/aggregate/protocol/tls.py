"""TLS from files, for both ends: whoever has a certificate of the job's authority may take part."""

from __future__ import annotations

import ssl
from pathlib import Path

from sumwire.errors import ConfigError

File = str | Path


def server_context(certificate: File, key: File, authority: File | None = None) -> ssl.SSLContext:
    """For a server. With an `authority`, workers must show a certificate that it has signed (mutual TLS)."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def worker_context(authority: File, certificate: File | None = None, key: File | None = None) -> ssl.SSLContext:
    """For a worker: the server's certificate must be signed by `authority`, and name the host that is connected to."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority)


def _context(protocol: int, certificate: File | None, key: File | None, authority: File | None) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")  # never ask a terminal for one
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(path) for path in (certificate, key, authority) if path is not None)
        raise ConfigError(f"TLS files ({files}) cannot be used: {error}") from None
    return context
