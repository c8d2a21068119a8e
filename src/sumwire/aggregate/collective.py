"""Averages over a torch process group (gloo, NCCL, MPI): nobody decompresses on the way.

A round passes four stages, each in a thread of its own, the first three over a communicator of their own:

    join      propose, maximum of the terms over the ranks, encode
    exchange  all-to-all of payloads, add, all-gather of sums; or a plain SUM
    share     all-gather of sums whose adding takes long
    decode    decode the sum over the tensor

so rounds follow each other like wagons, no caller waits for the network, and large messages never share a
link with one another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist

from sumwire.aggregate import rows_route, sparse_route
from sumwire.aggregate.client import Link
from sumwire.aggregate.group import cost
from sumwire.aggregate.group.communicator import Wire, twins
from sumwire.aggregate.group.consistency import agree, random_number
from sumwire.aggregate.group.cost import Algorithm
from sumwire.aggregate.lattice_route import LatticeRoute
from sumwire.aggregate.lifetime import Lifetime
from sumwire.aggregate.plain import PlainRoute
from sumwire.aggregate.round import Round, Route
from sumwire.aggregate.rows_route import RowsRoute
from sumwire.aggregate.server_route import SparseServerRoute, ThroughServer
from sumwire.aggregate.sparse_route import CompactRoute, SparseRoute
from sumwire.aggregate.stages import Stages
from sumwire.aggregate.ways import Lanes, Sharded
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import ConfigError, InputError, RoundError


class Collective:
    """Averages tensors over the ranks of a process group, compressed by a `Lattice` or a `Sparse` codec.

    Law: every rank gets the same bits, those of `sumwire.average` over the ranks' tensors. Bits of a lattice: b
    up and w down a coordinate (`sharded`), against 64 for a ring of fp32. A tensor that some rank cannot
    encode (NaN, Inf, beyond 2**115) goes the plain way at all ranks, as without Sumwire; `Sparse` takes them all.

    >>> import torch.distributed as dist                                    # doctest: +SKIP
    >>> dist.init_process_group("gloo")                                     # doctest: +SKIP
    >>> with Collective(sumwire.Lattice(dist.get_world_size())) as ranks:   # doctest: +SKIP
    ...     ranks.average(gradient, round_id=1)                             # in place

    Options, the same at every rank (which is checked, by name, before anything else is sent):

    codec      a `Lattice` or `Sparse` for as many workers as the group has ranks
    group      the process group (default: the whole world); all its ranks must build this together
    algorithm  "auto" takes the cheapest by `cost.choose`; by force: "sharded", "lanes" (of a lattice), "sparse",
               "compact" (lossless), "probe" (what suits the tensor's density) or "plain"
    backend    of the communicators (default: the group's own for CPU tensors, else gloo)
    settings   further things that must agree between the ranks
    link       to a parameter server, which then adds the payloads; open, and closed by whoever opened it. Or what opens
               one, given a communicator and `session`
    closed     called when this has ended, in another thread: to close what was opened for it. It must not refer to it

    Threads and communicators end with `close`, or when this object is garbage-collected.
    """

    def __init__(
        self,
        codec: Lattice | Sparse,
        group: dist.ProcessGroup | None = None,
        *,
        algorithm: Literal["auto"] | Algorithm = "auto",
        backend: str | None = None,
        settings: Mapping[str, object] | None = None,
        link: Link | Callable[[Wire, int], Link] | None = None,
        closed: Callable[[], None] | None = None,
    ) -> None:
        if algorithm != "auto" and algorithm not in cost.ALGORITHMS:
            raise ConfigError(f"algorithm={algorithm!r} is not one of auto, {', '.join(cost.ALGORITHMS)}")
        if link is not None and algorithm != "auto":
            raise ConfigError(f"algorithm={algorithm!r} and a server were both given: either decides alone")
        self.codec = codec
        self.algorithm = algorithm
        self.link: Link | None = None
        """To the parameter server, if there is one."""
        self.session = 0
        """A random number that all ranks share."""
        wires = twins(group, 3, backend)
        self.rank, self.ranks = wires[0].rank, wires[0].ranks
        self.has_all_to_all = wires[0].has_all_to_all
        """Whether the process group is known to have an all-to-all of bytes."""
        try:
            mine: dict[str, object] = {"backend": backend, "server": link is not None, **(settings or {})}
            routes = self._agreed_routes(wires[0], mine, link)
        except BaseException:
            for wire in wires:
                wire.close()
            raise
        self._stages = Stages(codec, routes, wires, closed)
        self._lifetime = Lifetime(self, self._stages.end, "sumwire-end")

    def _agreed_routes(
        self, wire: Wire, settings: Mapping[str, object], link: Link | Callable[[Wire, int], Link] | None
    ) -> dict[str, Route]:
        """The ways that rounds can go, after all ranks have found that they were set up alike."""
        codec, algorithm = self.codec, self.algorithm
        mine = {"workers": codec.workers, "codec": repr(codec), "codec family": codec.family, "algorithm": algorithm}
        agree(wire, mine | dict(settings))
        if codec.workers != self.ranks:
            raise ConfigError(
                f"the codec was built for workers={codec.workers}, the group has {self.ranks} ranks: build it with "
                f"workers={self.ranks}"
            )
        self.session = random_number(wire)
        self.link = link(wire, self.session) if callable(link) else link
        routes = self._build_routes()
        if algorithm not in ("auto", *routes) and not (algorithm == "probe" and isinstance(codec, Lattice)):
            raise ConfigError(f"algorithm={algorithm!r} does not go with a {type(codec).__name__} codec")
        return routes

    def _build_routes(self) -> dict[str, Route]:
        codec = self.codec
        sparse = codec if isinstance(codec, Sparse) else Sparse(self.ranks)
        routes: dict[str, Route] = {
            "plain": PlainRoute(), "sparse": SparseRoute(sparse), "compact": CompactRoute(self.ranks),
            "rows": RowsRoute(self.ranks),
        }  # fmt: skip
        if isinstance(codec, Lattice):
            routes |= {"sharded": LatticeRoute(codec, Sharded()), "lanes": LatticeRoute(codec, Lanes())}
        if self.link is not None:
            routes["server"] = (
                LatticeRoute(codec, ThroughServer(self.link))
                if isinstance(codec, Lattice)
                else SparseServerRoute(sparse, self.link)
            )
        return routes

    def __enter__(self) -> Collective:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout: float | None = None) -> None:
        """Finish the rounds under way, end threads and communicators; wait `timeout` seconds for that at most."""
        self._stages.stop()
        self._lifetime.close(0 if self._stages.run_here else timeout)

    def end_with(self, owner: object) -> None:
        """Close when this object is garbage-collected, too."""
        self._lifetime.follow(owner)

    @property
    def error(self) -> BaseException | None:
        """What ended this collective, if anything did."""
        return self._stages.error

    def choose(self, size: int) -> Algorithm:
        """The way that a tensor of `size` coordinates goes."""
        if self.link is not None:
            return "server"
        if self.algorithm != "auto":
            return self.algorithm
        if isinstance(self.codec, Sparse):
            return "sparse" if self.has_all_to_all else "compact"
        return cost.choose(self.codec, self.ranks, size, all_to_all=self.has_all_to_all)

    def average(self, tensor: torch.Tensor, *, round_id: int, **options: Any) -> torch.Tensor:
        """Replace the tensor by its mean over the ranks; returns it when that is done.

        All ranks must average the same tensors in the same order, each with a `round_id` of its own.
        """
        finished = threading.Event()
        errors: list[BaseException] = []

        def done(error: BaseException | None) -> None:
            errors.extend([error] if error else [])
            finished.set()

        self.submit(tensor, round_id=round_id, done=done, **options)
        finished.wait()
        if errors:
            raise errors[0]
        return tensor

    def average_async(self, tensor: torch.Tensor, *, round_id: int, **options: Any) -> torch.futures.Future[Any]:
        """As `average`, but returns a future of the tensor at once."""
        return promise(lambda done: self.submit(tensor, round_id=round_id, done=done, **options), tensor)

    def average_rows(self, tensor: torch.Tensor, *, round_id: int, **options: Any) -> torch.futures.Future[Any]:
        """A future of the mean of tensors in torch's sparse COO layout, as nn.Embedding(sparse=True) makes them.

        Nothing is made dense. Law: the bits of the dense float32 sum in rank order, over float32(ranks).
        """
        kept: list[torch.Tensor] = []
        submitted = promise(
            lambda done: self.submit(tensor, round_id=round_id, done=done, keep=kept.append, **options), kept
        )
        return submitted.then(lambda settled: settled.value()[0])

    def submit(
        self,
        tensor: torch.Tensor,
        *,
        round_id: int,
        done: Callable[[BaseException | None], None],
        algorithm: Algorithm | None = None,
        **options: Any,
    ) -> None:
        """Start a round and return; another thread calls `done`. See `Round` for the options."""
        if tensor.layout != torch.strided:
            self._submit_rows(tensor, round_id, done, **options)
            return
        if tensor.dim() != 1 or not tensor.is_contiguous() or not tensor.dtype.is_floating_point:
            raise InputError(
                f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)} cannot be averaged in place: pass a flat, "
                "contiguous view of floating point (of complex numbers, torch.view_as_real)"
            )
        if self.ranks == 1:
            done(None)  # the mean of one is itself
            return
        way = algorithm or self.choose(tensor.numel())
        if way in (*cost.LOSSLESS, "probe") and options.get("residual") is not None:
            raise ConfigError(f"algorithm={way!r} may lose nothing, so a residual has nothing to keep: leave it away")
        lossless = way in cost.LOSSLESS or (way == "server" and isinstance(self.codec, Sparse))
        if lossless and not sparse_route.takes(tensor):
            way = "plain"  # float64 has no sum in float32 without loss
        job = Round(tensor, round_id, way, done, **options)
        if tensor.is_cuda:
            job.ready = torch.cuda.current_stream(tensor.device).record_event()
        self._stages.submit(job)

    def _submit_rows(
        self, tensor: torch.Tensor, round_id: int, done: Callable[[BaseException | None], None], **options: Any
    ) -> None:
        if not self.takes_rows(tensor):
            raise InputError(
                f"a {tensor.dtype} tensor of layout {tensor.layout} cannot be averaged row by row: that takes sparse "
                "COO in float32, float16 or bfloat16, and a group with all-to-all; make it dense, tensor.to_dense()"
            )
        job = Round(tensor, round_id, "rows", done, **options)
        if tensor.is_cuda:
            job.ready = torch.cuda.current_stream(tensor.device).record_event()
        if self.ranks > 1:
            self._stages.submit(job)
            return
        if job.keep is not None:
            job.keep(tensor)
        done(None)

    def takes_rows(self, tensor: torch.Tensor) -> bool:
        """Whether this sparse tensor can be averaged without making it dense."""
        return rows_route.takes(tensor) and self.has_all_to_all


def promise(start: Callable[[Callable[[BaseException | None], None]], None], value: Any) -> torch.futures.Future[Any]:
    """A future of `value`, which `start` is given the means to fulfil or to break."""
    devices: list[Any] | None = [value.device] if isinstance(value, torch.Tensor) and value.is_cuda else None
    future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)

    def done(error: BaseException | None) -> None:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(RoundError(str(error)))

    start(done)
    # A callback that raises is the only way to hand C++, where DDP waits, a proper error.
    return future.then(lambda settled: settled.value())
