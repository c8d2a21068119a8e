"""Rounds of torch tensors, wherever they live, and torch futures of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import Variable

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.round import Round
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.algebra import ErrorFeedback
from sumwire.codec.base import Codec
from sumwire.codec.tensors import Tensor
from sumwire.errors import BehindError
from sumwire.kernels.arrays import Buffers


class TensorRound(Round):
    """Averages a torch tensor in place, through the host's memory if need be; a sparse one into a new one.

    On a GPU all its work is in the order of one stream beside the model's. The tensor stays there if the codec has
    kernels for it.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        tensor: torch.Tensor,
        codec: Codec | None,
        *,
        round_id: int,
        statistics: Statistics,
        noise_id: int | None = None,
        residual: ErrorFeedback | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self._dense = tensor.layout == torch.strided
        super().__init__(
            aggregator,
            tensor,
            codec,
            round_id=round_id,
            noise_id=noise_id,
            residual=residual,
            out=tensor if self._dense else None,
            workspace=Workspace(buffers or Buffers(), statistics),
        )
        self.tensor = tensor
        carried = aggregator.carries_tensors or self.codec.payloads_on_host
        self._stays = self._dense and not self.exact and carried and self.codec.stays_on_device(tensor)
        """Whether it is encoded where it lies."""
        self.may_skip, self.behind = False, False
        """Whether the round may be skipped, leaving zeros, if the job has gone on without this worker; and was."""
        # After this event on the device's stream the tensor is complete.
        self._ready = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def run(self) -> Tensor:
        mean = super().run()
        follow_side_stream(self.tensor.device)
        return mean

    def load(self) -> None:
        if self._ready is not None:
            torch.cuda.current_stream(self.tensor.device).wait_event(self._ready)
        if self._stays if not self.exact else self._dense and self.aggregator.sums_on(self.tensor.device):
            return
        self.x = self.tensor.cpu()  # itself, where it is there already
        self.out = self.x if self._dense else None

    def agree(self) -> None:
        self._unless_behind(super().agree)

    def _join(self) -> None:
        super()._join()
        if self.exact and self._stays:
            self.load()  # some rank cannot encode its tensor: what follows takes host memory

    def compress(self) -> None:
        self._unless_behind(super().compress)

    def add(self) -> None:
        self._unless_behind(super().add)

    def gather(self) -> None:
        self._unless_behind(super().gather)

    def decode(self) -> Tensor:
        with side_stream(self.tensor.device):
            return super().decode()

    def _unless_behind(self, stage: Callable[[], None]) -> None:
        if self.behind:
            return
        with side_stream(self.tensor.device):
            try:
                stage()
            except BehindError:
                if not self.may_skip:
                    raise
                self.behind, self._mean = True, self.tensor.zero_()

    def store(self, mean: Tensor) -> None:
        if mean is not self.tensor and self._dense:
            self.tensor.copy_(mean)


_streams: dict[torch.device, torch.cuda.Stream] = {}


def side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Work that follows goes to this process's one stream for rounds on a GPU, beside the model's; nothing on the CPU.

    One for all rounds, so that they may share buffers.
    """
    if device.type != "cuda":
        return nullcontext()
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(_streams[device])


def follow_side_stream(device: torch.device) -> None:
    """Work that the caller's stream gets from now on comes after what rounds on this GPU have been given so far."""
    if device in _streams:
        torch.cuda.current_stream(device).wait_event(_streams[device].record_event())


class _Countdown:
    """Tells when the last of several rounds is done, or the first has failed; once."""

    def __init__(self, rounds: Sequence[Future[Any]], told: Callable[[BaseException | None], None]) -> None:
        self._left, self._over, self._told = len(rounds), False, told
        self._lock = threading.Lock()
        for future in rounds:
            future.add_done_callback(self._one)
        if not rounds:
            told(None)

    def _one(self, done: Future[Any]) -> None:
        error = done.exception()
        with self._lock:
            self._left -= 1
            tell = not self._over and (error is not None or self._left == 0)
            self._over = self._over or tell
        if tell:
            self._told(error)


def when_done(rounds: Sequence[Future[Any]], future: Future[None], finish: Callable[[], None] = lambda: None) -> None:
    """Once all rounds are done, call `finish` and complete a future; or fail it with the first error among them."""

    def told(error: BaseException | None) -> None:
        if error is None:
            try:
                finish()
            except Exception as failed:
                error = failed
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    _Countdown(rounds, told)


def settled(
    rounds: Sequence[Future[Any]],
    finish: Callable[[], Any],
    device: torch.device,
    *,
    instead: torch.Tensor,
    failed: Callable[[BaseException], None],
) -> torch.futures.Future[Any]:
    """A torch future of what `finish` returns once all rounds are done.

    If one fails, `failed` is told why, and the future has `instead`: an error in a future that DDP waits for, in C++,
    would become a RuntimeError and leave DDP unusable. It is raised when DDP is done (`call_after_backward`).
    """
    future: torch.futures.Future[Any] = torch.futures.Future(devices=[device] if device.type == "cuda" else None)

    def told(error: BaseException | None) -> None:
        # Whoever waits for the future lets its own stream wait for what was given to this one.
        with side_stream(device):
            try:
                result = finish() if error is None else instead
            except Exception as raised:
                error, result = raised, instead
            if error is not None:
                failed(error)
            future.set_result(result)

    _Countdown(rounds, told)
    return future


def call_after_backward(callback: Callable[[], None]) -> bool:
    """Call this at the end of the backward pass, which then raises what it raises; False if there is none."""
    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True
