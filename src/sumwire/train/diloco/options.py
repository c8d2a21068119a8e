"""The options of `DiLoCo`, checked, and which inner step begins or ends which exchange."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from typing import Any, Literal

from sumwire.aggregate.group.group import Algorithm
from sumwire.codec.options import whole_number
from sumwire.errors import ConfigError
from sumwire.train.options import CodecOptions, Settings

EXACT_BITS = 32
"""The `bits` that stand for fp32, without compression."""

Buffers = Literal["average", "local"]


class DiLoCoOptions(CodecOptions, total=False):
    """Options of `DiLoCo`; the same at every worker but for `rank`, `token`, `tls`, `patience` and `log`.

    fragments    into how many fragments parameters are split, whose exchanges are spread over `every` steps (default 1)
    delay        inner steps during which a fragment's exchange runs in the background (default 0: training waits)
    mix          share of a worker's own parameters in what it goes on with after an exchange (default: 0; with a delay,
                 0.5)
    buffers      "average" (default): floating-point buffers that checkpoints have, those of BatchNorm say, are averaged
                 exactly with the first fragment; "local": every worker keeps its own. Others always stay local
    exact_below  tensors of at most this many values are averaged exactly while that is cheap (default 1024)
    span         values of a round at most, so that large fragments pipeline (default 8M)
    algorithm    of the process group, as in `attach`
    job, token, tls, rank, workers
                 of this worker at a server, as in `attach`
    patience     seconds that a newcomer waits for the others (default 3600)
    log          called as log(name, value, step) after each exchange, or a TensorBoard writer
    """

    fragments: int
    delay: int
    mix: float | None
    buffers: Buffers
    exact_below: int
    span: int
    algorithm: Algorithm
    job: str | None
    token: str
    tls: ssl.SSLContext | None
    rank: int | None
    workers: int | None
    patience: float
    log: Any


@dataclass(frozen=True, kw_only=True)
class DiLoCoSettings(Settings):
    """All options, checked, with their defaults; those of DDP alone keep theirs."""

    every: int = 100
    fragments: int = 1
    delay: int = 0
    mix: float | None = None
    buffers: Buffers = "average"
    exact: bool = False
    """Whether nothing is compressed."""
    patience: float = 3600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("every", self.every, 1, 1 << 30)
        whole_number("fragments", self.fragments, 1, self.every)
        most = self.every // self.fragments - 1
        if not 0 <= whole_number("delay", self.delay) <= most:
            raise ConfigError(
                f"delay={self.delay} is not in 0..{most}: an exchange must end before the next begins, every "
                f"{self.every // self.fragments} steps (every={self.every}, fragments={self.fragments})"
            )
        if self.mix is not None and not 0 <= self.mix < 1:
            raise ConfigError(f"mix={self.mix} is not in 0..1 (1 excluded): it is a worker's own share")
        if self.buffers not in ("average", "local"):
            raise ConfigError(f'buffers={self.buffers!r} is neither "average" nor "local"')
        if not self.patience > 0:
            raise ConfigError(f"patience={self.patience} is not a number of seconds above 0")
        if self.codec == "auto":
            raise ConfigError('codec="auto" is for gradients that may be sparse; how far a model has come is not: omit')

    @property
    def own_share(self) -> float:
        """Of a worker's own parameters, after an exchange."""
        return self.mix if self.mix is not None else 0.5 if self.delay else 0.0

    def begins(self, step: int) -> int | None:
        """The fragment whose exchange begins after this inner step, counted from 1; the last one's every `every`."""
        at = (step - 1) % self.every + 1
        edges = [self.every * (number + 1) // self.fragments for number in range(self.fragments)]
        return edges.index(at) if at in edges else None

    def ends(self, step: int) -> int | None:
        """The fragment whose exchange ends after this inner step."""
        return self.begins(step - self.delay) if step > self.delay else None

    def digest(self, workers: int) -> int:
        """31 bits that differ where workers were given options that do not go together."""
        codec = None if self.exact else self.choose(workers).description()
        mine = (
            self.every,
            self.fragments,
            self.delay,
            self.own_share,
            self.buffers,
            self.exact_below,
            self.span,
            codec,
        )
        return int.from_bytes(hashlib.blake2b(repr(mine).encode(), digest_size=4).digest(), "little") >> 1


def make_settings(bits: int | None, over: Any, every: int, options: DiLoCoOptions) -> DiLoCoSettings:
    """From what `DiLoCo` was given."""
    exact = bits == EXACT_BITS
    if exact and any(options.get(name) is not None for name in ("codec", "total_bits", "feedback", "energy")):
        raise ConfigError("bits=32 sends values as they are: omit codec, total_bits, feedback and energy")
    server = over if isinstance(over, str) else None
    return DiLoCoSettings(bits=None if exact else bits, exact=exact, every=every, server=server, **options)
