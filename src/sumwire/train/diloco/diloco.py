"""DiLoCo: workers train alone for `every` steps, then an outer optimizer follows the mean of where they went."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any, Unpack

import torch
from torch.utils.hooks import RemovableHandle

from sumwire.aggregate.lifetime import Lifetime
from sumwire.aggregate.statistics import Statistics
from sumwire.errors import ConfigError
from sumwire.train.diloco.checkpoint import load, save
from sumwire.train.diloco.exchange import Exchange, InFlight, Outcome, Over
from sumwire.train.diloco.options import DiLoCoOptions, make_settings
from sumwire.train.diloco.outer import Outer, OuterFactory
from sumwire.train.diloco.plan import Plan, Planner
from sumwire.train.diloco.site import averaged_buffers, is_sharded, site_of, trained_parameters
from sumwire.train.diloco.synchronization import Synchronization
from sumwire.train.scalars import logger, scalars
from sumwire.train.wrappers import bare_optimizer

_log = logging.getLogger(__name__)


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of the DiLoCo paper."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def averaging(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of local SGD: it goes to the mean."""
    return torch.optim.SGD(parameters, lr=1.0)


class DiLoCo:
    """Trains a model at several workers that exchange, in compressed form, only every `every` steps.

    The training loop stays as it is: what is to be done happens after `optimizer.step()`. After `every` steps the
    pseudo-gradient, the outer parameters minus this worker's, is averaged over the workers; the outer optimizer makes a
    step with it; and training goes on from the outer parameters.

    Law: outer parameters and the outer optimizer's state are bit-identical at all workers after every outer step, which
    they verify by a digest. Without `mix`, so are the model's. NaN and Inf show up at all workers. Sums are divided by
    the count of workers in them. Cost: about b + w bits per parameter for every exchange, the outer parameters, their
    optimizer's state and the pseudo-gradient in memory; with feedback, two more copies.

    Parameters
    ----------
    model
        A module, or a `DistributedDataParallel` whose ranks are one site: its first rank exchanges for all. A model
        that went through FSDP2's `fully_shard`: each rank exchanges its shard with its counterparts in other sites,
        over a process group of these.
    optimizer
        The inner optimizer; Accelerate's, Lightning's or Fabric's wrapper around it will do.
    over
        What workers average over: a process group (default: the whole world), "host:port" of a server, or
        "udp://host:port/job"; or an open `Link` or any other `Aggregator`. Over a server workers may come and go.
    every
        Inner steps from one exchange to the next.
    outer
        Makes the outer optimizer from the outer parameters (default: SGD with lr=0.7 and Nesterov momentum of 0.9).
    bits
        Bits per parameter that a worker sends (default 4); 32: fp32, without compression.
    options
        See `DiLoCoOptions`.

    Examples
    --------
    >>> optimizer = torch.optim.AdamW(model.parameters())                   # doctest: +SKIP
    >>> diloco = DiLoCo(model, optimizer, "server:4650", rank=0, workers=4, job="gpt", every=100)  # doctest: +SKIP
    >>> for x, y in batches:                                                # doctest: +SKIP
    ...     loss(model(x), y).backward()
    ...     optimizer.step()  # and every 100 steps, an exchange
    ...     optimizer.zero_grad()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        over: Over = None,
        *,
        every: int = 100,
        outer: OuterFactory | None = None,
        bits: int | None = None,
        **options: Unpack[DiLoCoOptions],
    ) -> None:
        self.settings = make_settings(bits, over, every, options)
        named, optimizer = trained_parameters(model), bare_optimizer(optimizer)
        _check_optimizer(optimizer, named)
        if is_sharded(named) and (isinstance(over, str) or getattr(over, "can_listen", False)):
            raise ConfigError(
                "FSDP2 over a server: shards of one site could fall behind one by one; pass a process group of the "
                "ranks that hold the same shard, one of each site"
            )
        self.steps = 0
        """Inner steps done, as all workers count them."""
        self.statistics = Statistics()
        """Of the last exchange, or of the one in flight, at this worker."""
        self._site = site_of(model)
        self._exchange: Exchange | None = None
        self._lifetime: Lifetime | None = None
        try:
            workers = self._site.lead(lambda: self._connect(over))
            buffers = averaged_buffers(model) if self.settings.buffers == "average" else []
            codec = None if self.settings.exact else self.settings.choose(workers)
            kept = None if self._exchange is None else self._exchange.codec
            self._outer = Outer(named, buffers, outer or nesterov, codec, kept, self.settings)
            self._synchronization = Synchronization(self._outer, self._site, self._exchange, self.settings, workers)
            self._flight: InFlight | None = None
            self._complete = True  # all exchanges since workers last compared their states
            self._planner, self._log = Planner(), logger(self.settings.log)
            self.steps = self._synchronization.begin()
        except BaseException:
            self.close(0)
            raise
        self.joined = self.steps > 0
        """Whether this worker joined others that were training already, and has their state."""
        self._hook: RemovableHandle | None = optimizer.register_step_post_hook(self._after_step)

    def _connect(self, over: Over) -> int:
        """To the other sites, of which it returns the number, with this one."""
        self._exchange = Exchange(over, self.settings)
        self._lifetime = Lifetime(self, self._exchange.connection.end, "sumwire-diloco-end")
        return self._exchange.aggregator.workers

    @classmethod
    def local_sgd(
        cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer, over: Over = None, **options: Any
    ) -> DiLoCo:
        """Local SGD: every `every` steps, parameters become their mean over the workers."""
        return cls(model, optimizer, over, outer=averaging, **options)

    # What users see

    @property
    def outer_optimizer(self) -> torch.optim.Optimizer:
        """For a learning-rate schedule, say; the same at all workers."""
        return self._outer.optimizer

    @property
    def plan(self) -> Plan | None:
        """How much of the time exchanges take; None until two have ended."""
        return self._planner.last

    def digest(self) -> str:
        """Of the outer state: the same text at two workers exactly when it is equal."""
        return "".join(f"{int(word):08x}" for word in self._outer.digest(self.steps))

    def outer_parameters(self) -> dict[str, torch.Tensor]:
        """The parameters to evaluate or publish, by name: they are the same at all workers."""
        pairs = [zip(each.names, each.outer, strict=True) for each in self._outer.fragments]
        return {name: outer.detach() for pair in pairs for name, outer in pair}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs beside model and inner optimizer; save it at every worker.

        Waits for the exchange in flight, if there is one.
        """
        return save(self._outer, self._exchange, self._flight, self.steps)

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Go on from a `state_dict`, before the first step, with model and inner optimizer restored.

        Parameters
        ----------
        state
            Of this worker. Another worker's will do as well, but for its residuals: they are dropped, with a warning.
        strict
            False drops residuals, with a warning, where the codec is another one, instead of raising `MismatchError`.
        """
        if self.joined:
            _log.warning("Sumwire: others are training already, and their state was taken: the checkpoint is not used")
            return
        if self.steps:
            raise ConfigError(f"after {self.steps} steps no other state can be loaded: build another DiLoCo")
        self._flight, self.steps = load(state, self._outer, self._exchange, strict=strict)

    def close(self, timeout: float | None = None) -> None:
        """End threads and connections, or give up waiting for them after `timeout` seconds. Model and state stay."""
        hook = getattr(self, "_hook", None)
        if hook is not None:
            hook.remove()
            self._hook = None
        if self._lifetime is not None:
            self._lifetime.close(timeout)

    # What happens after inner steps

    def _after_step(self, *_: object) -> None:
        self.steps += 1
        begins, ends = self.settings.begins(self.steps), self.settings.ends(self.steps)
        if begins is not None:
            self._begin(begins)
        if ends is not None:
            self._end(ends)

    def _begin(self, number: int) -> None:
        self._outer.fragments[number].take_pseudo_gradient()
        if number == 0:
            self._outer.take_buffers()
        if self._exchange is not None:
            self._flight = self._exchange.begin(self._outer, number)
            self.statistics = self._flight.statistics
        self._outer.exchanges += 1

    def _end(self, number: int) -> None:
        start = perf_counter()
        flight, self._flight = self._flight, None
        outcome = self._site.lead(lambda: Outcome.DONE if flight is None else flight.wait())
        if outcome == Outcome.DONE:
            self._apply(number)
        self._complete = self._complete and outcome == Outcome.DONE
        if outcome == Outcome.BEHIND or number == self.settings.fragments - 1:
            behind, complete, self._complete = outcome == Outcome.BEHIND, self._complete, True
            self.steps = self._synchronization.compare(self.steps, complete=complete, behind=behind)
        if flight is not None and flight.seconds is not None:
            self._report(flight.seconds, perf_counter() - start)

    def _apply(self, number: int) -> None:
        fragment = self._outer.fragments[number]
        self._site.share(fragment.flat)
        self._outer.step(fragment)
        fragment.go_on_from_outer(self.settings.own_share)
        if number == 0 and self._outer.buffers:
            self._site.share(self._outer.buffer_flat)
            self._outer.set_buffers()

    def _report(self, seconds: float, waited: float) -> None:
        first = self._planner.last is None
        plan = self._planner.ended(seconds, waited, self.steps, self.statistics.sent)
        if plan is not None and first and self._exchange is not None and self._exchange.aggregator.rank == 0:
            _log.log(logging.WARNING if plan.wasteful else logging.INFO, "Sumwire: %s", plan.sentence())
        if self._log is None:
            return
        try:
            figures = {"sumwire/round_seconds": seconds, "sumwire/waited_seconds": waited}
            for name, value in (scalars(self.statistics) | figures).items():
                self._log(name, value, self.steps)
        except Exception:  # or this worker would leave the others waiting, for a chart
            _log.warning("the `log` that was passed to DiLoCo failed; it is not called again", exc_info=True)
            self._log = None


def _check_optimizer(optimizer: object, named: dict[str, torch.Tensor]) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer={optimizer!r} is not a torch optimizer: pass the one that trains the model")
    trained = {id(parameter) for parameter in named.values()}
    if not any(id(parameter) in trained for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigError("the optimizer trains no parameter of the model: build it from model.parameters()")
