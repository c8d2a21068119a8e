"""Peers that run over a process group, by the names of `lab.peers`."""

from __future__ import annotations

from collections.abc import Sequence

from sumwire.errors import ConfigError
from sumwire.lab.peers import PEERS
from sumwire.lab.peers.base import Parts, Vector
from sumwire.lab.peers.dynamic import DynamiQ
from sumwire.lab.peers.exchange import QuantizedPeer
from sumwire.lab.peers.feedback import EFSign
from sumwire.lab.peers.sparse import DGC
from sumwire.lab.peers.ternary import TernGrad
from sumwire.lab.wired.exchange import RankExchange
from sumwire.lab.wired.gather import GatherExchange
from sumwire.lab.wired.owner import OwnerExchange, TernaryExchange
from sumwire.lab.wired.ring import DynamicRing, QuantizedRing
from sumwire.lab.wired.wire import Wire

_ELSEWHERE = ("powersgd-1", "powersgd-2", "powersgd-4", "recompressed-4")
"""PowerSGD is a hook of torch; `recompressed` is no published scheme."""

WIRED = tuple(name for name in PEERS if name not in _ELSEWHERE)


def build(name: str, sizes: Sequence[int], wire: Wire, *, seed: int = 0) -> RankExchange:
    """This rank's side of a peer, for tensors of these sizes, one after another in a flat one.

    Settings are those of `PEERS`, but for those with one scale for a whole tensor: TernGrad has one for each of the
    tensors, as published, and EF-sign with a server one for each owner's shard, or else a single rank would own all.
    """
    if name not in WIRED:
        raise ConfigError(f"peer {name!r} does not run over a process group: choose from {', '.join(WIRED)}")
    size, ranks = sum(sizes), wire.ranks
    if name == "terngrad":
        ternary = TernGrad(ranks, size, layers=sizes, seed=seed)
        ternary.draw_as(wire.rank)
        return TernaryExchange(ternary, wire)
    if name == "ef-sign-double":
        shard = max(1, -(-size // ranks))
        return OwnerExchange(EFSign(ranks, size, double_way=True, block=shard, seed=seed), wire)
    peer = PEERS[name](ranks, size, seed=seed)
    peer.draw_as(wire.rank)
    if isinstance(peer, DynamiQ):
        return DynamicRing(peer, wire)
    if isinstance(peer, DGC):
        return GatherExchange(size, peer.largest, lambda x: peer.payload(x, wire.rank), wire)
    assert isinstance(peer, QuantizedPeer), name
    if peer.exchange == "owner":
        return OwnerExchange(peer, wire)
    return QuantizedRing(peer, wire) if peer.exchange == "ring" else _gather(peer, wire)


def _gather(peer: QuantizedPeer, wire: Wire) -> GatherExchange:
    whole = [slice(0, peer.size)]

    def encode(x: Vector) -> Parts:
        (parts,), _ = peer.payloads(x, wire.rank, whole)
        return parts

    return GatherExchange(peer.size, peer.up, encode, wire)
