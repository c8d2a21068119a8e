"""A communication hook of DDP that averages gradients by a peer's scheme."""

from collections.abc import Sequence
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from sumwire.aggregate.group.duplicate import duplicate
from sumwire.errors import ConfigError
from sumwire.lab.simulate.train import SMALL
from sumwire.lab.wired.exchange import RankExchange
from sumwire.lab.wired.registry import build
from sumwire.lab.wired.wire import Wire

WARMUP = 2
"""First steps that are averaged exactly, as with `attach` and PowerSGD: then DDP has put buckets into their order."""


class PeerHook:
    """Averages the large gradients of a model by a peer, and biases and norms exactly, as the simulation does.

    The model must be wrapped with `DistributedDataParallel(model, bucket_cap_mb=...)` that holds all gradients: peers
    see one tensor. The hook works while autograd waits, so nothing overlaps with the computation of gradients.
    """

    def __init__(self, name: str, *, seed: int = 0, group: dist.ProcessGroup | None = None) -> None:
        self.name = name
        self.seed = seed
        self.steps = 0
        self.sent = 0.0
        """Bytes that this rank sent in the last step, without headers."""
        self.seconds = 0.0
        """Time in the hook in the last step, without that in collectives: encoding, adding and decoding."""
        self._wire = Wire(duplicate(group, 1, None)[0])
        self._exchange: RankExchange | None = None

    def attach(self, model: DistributedDataParallel) -> None:
        """Exchange this model's gradients from now on."""
        model.register_comm_hook(self, PeerHook.run)

    # DDP wants to see the classes themselves in the annotations of `bucket` and of what is returned.
    @staticmethod
    def run(hook: "PeerHook", bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP calls with each bucket of gradients."""
        if bucket.index() or not bucket.is_last():
            raise ConfigError(
                f"{hook.name} averages all gradients at once, and DDP made several buckets: build it with a "
                "bucket_cap_mb that holds the whole model"
            )
        buffer = bucket.buffer()
        before = hook._wire.sent
        if hook.steps < WARMUP:
            hook._exactly(buffer)
        else:
            hook._by_peer(bucket.gradients())
        hook.sent = float(hook._wire.sent - before)
        hook.steps += 1
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    def close(self) -> None:
        """Give the communicator back."""
        self._wire.close()

    def _by_peer(self, gradients: Sequence[Tensor]) -> None:
        """Replace these gradients, which are parts of the bucket, by their means."""
        began, waited = perf_counter(), self._wire.seconds
        large = [gradient for gradient in gradients if gradient.ndim >= 2 or gradient.numel() >= SMALL]
        small = [gradient for gradient in gradients if gradient.ndim < 2 and gradient.numel() < SMALL]
        if self._exchange is None:
            self._exchange = build(self.name, [gradient.numel() for gradient in large], self._wire, seed=self.seed)
        mean = self._exchange.average(_flat(large).numpy())
        _put_back(torch.from_numpy(mean), large)
        self.seconds = perf_counter() - began - (self._wire.seconds - waited)
        if small:
            exact = _flat(small)
            self._exactly(exact)
            _put_back(exact, small)

    def _exactly(self, values: Tensor) -> None:
        """values = their mean over the ranks, in place."""
        self._wire.sum(values)
        values.div_(self._wire.ranks)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)


def _put_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
