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

import atexit
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist

from sumwire.aggregate import cost, rows_route, sparse_route
from sumwire.aggregate.agreement import agree
from sumwire.aggregate.cost import Algorithm
from sumwire.aggregate.lattice_route import LatticeRoute
from sumwire.aggregate.link import Link
from sumwire.aggregate.pipeline import Pipeline
from sumwire.aggregate.plain import PlainRoute
from sumwire.aggregate.probe import probe
from sumwire.aggregate.round import Round, Route
from sumwire.aggregate.rows_route import RowsRoute
from sumwire.aggregate.server_route import SparseServerRoute, ThroughServer
from sumwire.aggregate.slots import Slots
from sumwire.aggregate.sparse_route import CompactRoute, SparseRoute
from sumwire.aggregate.ways import Lanes, Sharded
from sumwire.aggregate.wires import Wire, twins
from sumwire.codec.lattice import Lattice
from sumwire.codec.sparse import Sparse
from sumwire.errors import ConfigError, InputError, RoundError, SumwireError

UNDER_WAY = 4
"""Rounds that may hold memory at once: one per stage."""

_PATIENCE_AT_EXIT = 5.0


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
    link       to a parameter server, which then adds the payloads; open, and closed by whoever opened it
    """

    def __init__(
        self,
        codec: Lattice | Sparse,
        group: dist.ProcessGroup | None = None,
        *,
        algorithm: Literal["auto"] | Algorithm = "auto",
        backend: str | None = None,
        settings: Mapping[str, object] | None = None,
        link: Link | None = None,
    ) -> None:
        if algorithm != "auto" and algorithm not in cost.ALGORITHMS:
            raise ConfigError(f"algorithm={algorithm!r} is not one of auto, {', '.join(cost.ALGORITHMS)}")
        if link is not None and algorithm != "auto":
            raise ConfigError(f"algorithm={algorithm!r} and a server were both given: either decides alone")
        self.codec = codec
        self.algorithm = algorithm
        self._link = link
        self._wires: list[Wire] = twins(group, 3, backend)
        self.rank, self.ranks = self._wires[0].rank, self._wires[0].ranks
        mine = {"workers": codec.workers, "codec": repr(codec), "codec family": codec.family, "algorithm": algorithm}
        agree(self._wires[0], mine | {"backend": backend, "server": link is not None} | dict(settings or {}))
        if codec.workers != self.ranks:
            raise ConfigError(
                f"the codec was built for workers={codec.workers}, the group has {self.ranks} ranks: build it with "
                f"workers={self.ranks}"
            )
        self._routes = self._build_routes()
        if algorithm not in ("auto", *self._routes) and not (algorithm == "probe" and isinstance(codec, Lattice)):
            raise ConfigError(f"algorithm={algorithm!r} does not go with a {type(codec).__name__} codec")
        self._slots = Slots(UNDER_WAY)
        self._pipeline: Pipeline[Round] = Pipeline("sumwire", self._stages, self._blame)
        atexit.register(self._close_at_exit)

    def _build_routes(self) -> dict[str, Route]:
        codec = self.codec
        sparse = codec if isinstance(codec, Sparse) else Sparse(self.ranks)
        routes: dict[str, Route] = {
            "plain": PlainRoute(), "sparse": SparseRoute(sparse), "compact": CompactRoute(self.ranks),
            "rows": RowsRoute(self.ranks),
        }  # fmt: skip
        if isinstance(codec, Lattice):
            routes |= {"sharded": LatticeRoute(codec, Sharded()), "lanes": LatticeRoute(codec, Lanes())}
        if self._link is not None:
            routes["server"] = (
                LatticeRoute(codec, ThroughServer(self._link))
                if isinstance(codec, Lattice)
                else SparseServerRoute(sparse, self._link)
            )
        return routes

    @property
    def _stages(self) -> tuple[Callable[[Round], None], ...]:
        return self._join, self._exchange, self._share, self._decode

    def __enter__(self) -> Collective:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout: float | None = None) -> None:
        """Finish the rounds under way, end the threads (or give up on them after `timeout` s) and the communicators."""
        atexit.unregister(self._close_at_exit)
        self._pipeline.close(timeout)
        for wire in self._wires:
            wire.close()

    def _close_at_exit(self) -> None:
        # Threads of ours or of gloo that still hold tensors while the interpreter goes down would abort the process.
        self.close(_PATIENCE_AT_EXIT)

    @property
    def error(self) -> BaseException | None:
        """What ended this collective, if anything did."""
        return self._pipeline.error

    def choose(self, size: int) -> Algorithm:
        """The way that a tensor of `size` coordinates goes."""
        if self._link is not None:
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
                "contiguous view of floating point"
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
        self._pipeline.submit(job)

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
            self._pipeline.submit(job)
            return
        if job.keep is not None:
            job.keep(tensor)
        done(None)

    def takes_rows(self, tensor: torch.Tensor) -> bool:
        """Whether this sparse tensor can be averaged without making it dense."""
        return rows_route.takes(tensor) and self.has_all_to_all

    @property
    def has_all_to_all(self) -> bool:
        """Whether the process group is known to have an all-to-all of bytes."""
        return self._wires[0].has_all_to_all

    def _blame(self, job: Round, error: BaseException) -> BaseException:
        """What a collective says when a peer is gone, in words that help."""
        if isinstance(error, SumwireError) or not isinstance(error, RuntimeError):
            return error
        return RoundError(
            f"round {job.round_id} of {job.tensor.numel()} values failed at rank {self.rank}: {error}. Probably "
            "another rank has died or hangs; no parameter was changed: restart from the last checkpoint"
        )

    # The stages

    def _join(self, job: Round) -> None:
        if job.settings is not None:
            agree(self._wires[0], job.settings)
        if job.ready is not None:
            job.ready.synchronize()
        if job.algorithm == "plain":
            return
        job.host = job.tensor.cpu()  # itself, where it is there already
        job.borrow(self._slots)
        if self.error is not None:
            raise self.error  # it may have come while we waited for the slot
        if job.algorithm == "probe":
            assert isinstance(self.codec, Lattice)
            probe(job, self._wires[0], self.codec)
        self._routes[job.algorithm].join(job, self._wires[0])

    def _exchange(self, job: Round) -> None:
        self._routes[job.algorithm].exchange(job, self._wires[1])

    def _share(self, job: Round) -> None:
        self._routes[job.algorithm].share(job, self._wires[2])

    def _decode(self, job: Round) -> None:
        self._routes[job.algorithm].decode(job)


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
