"""TLS from files: who has no certificate of the authority gets nowhere."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import re
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import AsyncLink, ConfigError, RoundError, Sparse
from sumwire.aggregate.protocol.tls import server_context, worker_context
from sumwire.aggregate.server import connection, shard
from sumwire.wire import control
from tests.aggregate.server.serving import RETRY, Peer, hello, linked, serving, tensors

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def _certificate(folder: Path, name: str, issuer: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """Make a certificate and its key, as files; the authority's own, if there is no issuer."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    certificate = builder.sign(key if issuer is None else issuer[1], hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = _certificate(folder, "authority"), _certificate(folder, "other")
    for name in ("server", "worker"):
        _certificate(folder, name, authority)
    _certificate(folder, "intruder", other)
    return folder


def _server(files: Path, *, mutual: bool) -> Any:
    return server_context(files / "server.crt", files / "server.key", files / "authority.crt" if mutual else None)


@pytest.mark.parametrize("mutual", [False, True])
def test_averages_over_tls(files: Path, mutual: bool) -> None:
    async def main() -> None:
        mine = (files / "worker.crt", files / "worker.key") if mutual else ()
        worker = worker_context(files / "authority.crt", *mine)
        async with serving(2, tls=_server(files, mutual=mutual)) as site, linked(site, 2, tls=worker) as links:
            for r, size in enumerate([100, 300_000]):
                xs = tensors(2, r, size)
                got = await asyncio.gather(*(link.average(x) for link, x in zip(links, xs, strict=True)))
                assert np.array_equal(got[0], sumwire.average(sumwire.Lattice(2), xs, round_id=r))
                links[0]._session.shards[0].cut()

    asyncio.run(main())


def test_a_held_back_frame_over_tls(files: Path) -> None:
    async def main() -> None:
        worker, codec = worker_context(files / "authority.crt"), sumwire.Lattice(2, 8, block=64)
        tls = _server(files, mutual=False)
        async with serving(2, tls=tls, memory=3 << 19) as site, linked(site, 2, tls=worker) as links:
            xs = {r: tensors(2, r, 100_000) for r in range(4)}
            means = (link.average(xs[r][k], codec=codec, round_id=r) for r in xs for k, link in enumerate(links))
            got = await asyncio.gather(*means)
            for r in xs:
                assert np.array_equal(got[2 * r], sumwire.average(codec, xs[r], round_id=r))

    asyncio.run(main())


def _greet_with_the_handshake(port: int, files: Path) -> bytes:
    """A worker's greeting in one segment with the end of its handshake; what comes back."""
    read, write = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = worker_context(files / "authority.crt").wrap_bio(read, write, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(60)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(write.read())
                read.write(sock.recv(1 << 16))
        tls.write(control.to_bytes(hello(0, 1)))
        sock.sendall(write.read())
        while True:
            try:
                return tls.read(1 << 16)
            except ssl.SSLWantReadError:
                read.write(sock.recv(1 << 16))


def test_a_greeting_that_comes_with_the_handshake_is_read(files: Path) -> None:
    async def main() -> None:
        async with serving(1, tls=_server(files, mutual=False)) as site:
            answer = await asyncio.to_thread(_greet_with_the_handshake, site.port, files)
            assert isinstance(control.read(answer), control.Welcome)

    asyncio.run(main())


def test_half_open_handshakes_count_as_strangers(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MAX_STRANGERS", 8)
    monkeypatch.setattr(connection, "GREETING", 1.0)

    async def main() -> None:
        async with serving(1, tls=_server(files, mutual=False)) as site:
            crowd = [await Peer.at(site) for _ in range(40)]
            for peer in crowd:
                peer.send(b"\x16\x03\x01\x02")  # the front of a handshake, and then nothing
            await asyncio.sleep(0.1)
            assert len(site.shards[0].strangers) <= 8
            async with linked(site, 1, tls=worker_context(files / "authority.crt")) as (link,):
                assert (await link.average(np.ones(5, np.float32), codec=Sparse(1)))[0] == 1
            deadline = time.monotonic() + 20
            while site.shards[0].strangers:
                assert time.monotonic() < deadline, "strangers stay longer than their time"
                await asyncio.sleep(0.05)
            for peer in crowd:
                peer.close()

    asyncio.run(main())


@pytest.mark.parametrize("who", [None, "intruder"])
def test_workers_without_a_certificate_are_refused(files: Path, who: str | None) -> None:
    async def main() -> None:
        mine = () if who is None else (files / f"{who}.crt", files / f"{who}.key")
        worker = worker_context(files / "authority.crt", *mine)
        async with serving(2, tls=_server(files, mutual=True)) as site:
            with pytest.raises(RoundError, match="no server at"):
                await AsyncLink(site.address, rank=0, workers=2, tls=worker, timeout=0.3, retry=RETRY).__aenter__()
            assert site.shards[0].jobs == {}

    asyncio.run(main())


def test_a_server_of_another_authority_is_refused_at_once(files: Path) -> None:
    async def main() -> None:
        async with serving(2, tls=_server(files, mutual=False)) as site:
            link = AsyncLink(site.address, rank=0, workers=2, tls=worker_context(files / "other.crt"))
            with pytest.raises(RoundError, match="CERTIFICATE_VERIFY_FAILED"):
                await asyncio.wait_for(link.__aenter__(), 60)

    asyncio.run(main())


def test_plain_workers_get_nowhere(files: Path) -> None:
    async def main() -> None:
        async with serving(2, tls=_server(files, mutual=False)) as site:
            with pytest.raises(RoundError, match="no server at|refuses"):
                await AsyncLink(site.address, rank=0, workers=2, timeout=0.3, retry=RETRY).__aenter__()

    asyncio.run(main())


def test_wrong_files_are_named(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"worker\.key.*cannot be used"):
        server_context(files / "server.crt", files / "worker.key", None)
    with pytest.raises(ConfigError, match=r"nowhere\.crt"):
        sumwire.Server(2, tls=(files / "nowhere.crt", files / "server.key", None))


def test_server_processes_use_tls(files: Path) -> None:
    tls = (files / "server.crt", files / "server.key", files / "authority.crt")
    context = worker_context(files / "authority.crt", files / "worker.crt", files / "worker.key")
    with sumwire.Server(1, tls=tls) as server, sumwire.connect(server.address, rank=0, workers=1, tls=context) as link:
        x = np.arange(9, dtype=np.float32)
        assert np.array_equal(link.average(x, codec=sumwire.Sparse(1)), x)


def test_the_documented_way_works(files: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/server.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, flags=re.S) if "worker_context" in block)
    names: dict[str, Any] = {"sumwire": sumwire, "gradient": np.arange(9, dtype=np.float32)}
    tls = (files / "server.crt", files / "server.key", files / "authority.crt")
    with sumwire.Server(1, tls=tls, token="secret") as server:
        for written, here in {
            "ca.pem": str(files / "authority.crt"),
            "worker.pem": str(files / "worker.crt"),
            "worker-key.pem": str(files / "worker.key"),
            "server:4650": server.address,
            "workers=4": "workers=1",
        }.items():
            assert code.count(written) == 1
            code = code.replace(written, here)
        exec(code, names)
    assert names["mean"].shape == (9,)
