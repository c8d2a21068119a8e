"""Keys of the random streams that schemes draw from."""

from __future__ import annotations

from dataclasses import dataclass

from sumwire.codec.lattice.coding import stream_key

_NOISE, _SIGN, _SAMPLING, _ORDER = range(101, 105)  # random streams, distinct from those of Lattice


@dataclass(frozen=True)
class StreamKeys:
    """Keys of the random streams for one vector, derived from seed, round and rank."""

    seed: int
    round_id: int
    rank: int

    @property
    def noise(self) -> int:
        """Key of the client's own rounding noise."""
        return stream_key(self.seed, self.round_id, _NOISE, self.rank)

    @property
    def own_signs(self) -> int:
        """Key of the signs of a rotation that only this client uses."""
        return stream_key(self.seed, self.round_id, _SIGN, self.rank + 1)

    @property
    def shared_signs(self) -> int:
        """Key of the signs of a rotation that all clients of a round share."""
        return stream_key(self.seed, self.round_id, _SIGN)

    @property
    def sampling_word(self) -> int:
        """A random number in 0..2**32-1, which decides whether the client is sampled."""
        return stream_key(self.seed, self.round_id, _SAMPLING, self.rank)

    def ordering(self, rank: int) -> int:
        """Key of the numbers by which clients of a round are ordered, for any rank."""
        return stream_key(self.seed, self.round_id, _ORDER, rank)
