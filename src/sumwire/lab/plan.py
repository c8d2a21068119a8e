"""What a training step would take: dense, compressed, over every transport; which to choose, and why.

>>> found = plan(25e6, workers=8, rate=1e9, compute=0.2, machine=DEFAULT, cores=8)
>>> found.recommended.name, found.step("fp32") > found.step("4 bits")
('4 bits', True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

from sumwire.aggregate import transports
from sumwire.aggregate.cost_model import MOST_VALUES, OVERLAP, Job, Link, Machine, Prediction, Stage, crossing, predict
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.options import real_number, whole_number
from sumwire.errors import ConfigError
from sumwire.kernels.threads import get_num_cores
from sumwire.lab.calibration import DEFAULT, load
from sumwire.lab.links import format_rate
from sumwire.train.options import BITS, ENERGY

Transport = Literal["all-reduce", "process group", "server", "switch"]

WIDTHS = (8, 4, 3, 2)
RELIABLE = 4
"""Bits from which docs/training.md has no loss of accuracy without error feedback."""
MARGIN = 0.05
"""Of the step: of two options that differ by less, the more exact one is recommended."""
PATIENCE = 0.5
"""Share of the time that training may wait for exchanges before fewer of them are recommended."""
NOTABLE = 0.1
"""Of the step: what other hardware must save to be mentioned."""


@dataclass(frozen=True)
class Option:
    """One way of averaging."""

    name: str
    transport: Transport
    stages: Callable[[Job, Link, Machine], list[Stage]]
    code: str
    """How to get it."""
    bits: int = 32
    every: int = 1
    """Steps from one exchange to the next."""

    def predict(self, job: Job, link: Link, machine: Machine) -> Prediction:
        return predict(self.stages(job, link, machine), job, every=self.every)


@dataclass(frozen=True)
class Plan:
    """Every option with its prediction, and the choice among them."""

    job: Job
    link: Link
    machine: Machine
    calibrated: bool
    """Whether costs were measured on this machine; otherwise they are those of `DEFAULT`."""
    options: tuple[Option, ...]

    @cached_property
    def predictions(self) -> dict[str, Prediction]:
        """By the options' names."""
        return {option.name: option.predict(self.job, self.link, self.machine) for option in self.options}

    def option(self, name: str) -> Option:
        """The option of that name."""
        found = {option.name: option for option in self.options}
        if name not in found:
            raise ConfigError(f"no option {name!r}: choose from {', '.join(found)}")
        return found[name]

    def step(self, name: str, rate: float | None = None) -> float:
        """Seconds of a step; at another link rate, if one is given."""
        option = self.option(name)
        link = self.link if rate is None else replace(self.link, rate=rate)
        return option.predict(self.job, link, self.machine).step

    def break_even(self, name: str = f"{BITS} bits", against: str = "fp32") -> float:
        """The link rate, in bits per second, below which one option is faster than another; 0: never, inf: always."""
        return crossing(lambda rate: self.step(name, rate), lambda rate: self.step(against, rate))

    @cached_property
    def recommended(self) -> Option:
        """Of the fastest that need no other hardware and lose no accuracy, the most exact; DiLoCo on links too slow."""
        usual = [
            option
            for option in self.options
            if option.transport in ("all-reduce", "process group") and option.bits >= RELIABLE and option.every == 1
        ]
        steps = {option.name: self.predictions[option.name].step for option in usual}
        fastest = min(steps.values())
        if self.job.workers > 1 and 0 < self.job.compute < (1 - PATIENCE) * fastest:
            return next(option for option in self.options if option.every > 1 and option.bits == BITS)
        return next(option for option in usual if steps[option.name] <= fastest * (1 + MARGIN))  # the most exact first

    def reasons(self) -> list[str]:
        """Sentences on why that option is recommended, and what else there is to know."""
        if self.job.workers == 1:
            return ["One worker exchanges nothing."]
        chosen, steps = self.recommended, {name: each.step for name, each in self.predictions.items()}
        mine = steps[chosen.name]
        lines = [f"{chosen.name}: {1e3 * mine:.4g} ms per step; {self._against('fp32')}, {self._against('bf16')}."]
        lines.append(self._bottleneck(self.predictions[chosen.name]))
        for against in ("fp32", "bf16"):
            lines.append(f"{BITS} bits against {against}: {describe_break_even(self.break_even(against=against))}.")
        if chosen.every > 1:
            took = 1e3 * self.predictions[f"{BITS} bits"].exchange
            lines.append(
                f"After every step, {BITS} bits would take {took:.4g} ms: training would wait more than it computes. "
                "DiLoCo is another algorithm, and its steps are worth less (docs/sites.md)."
            )
        fewer = min((o for o in self.options if o.bits < RELIABLE and o.every == 1), key=lambda o: steps[o.name])
        if steps[fewer.name] < mine * (1 - MARGIN):
            lines.append(
                f"{fewer.name} would take {1e3 * steps[fewer.name]:.4g} ms, with more error (docs/training.md)."
            )
        for transport in ("server", "switch"):
            other = f"{BITS} bits, {transport}"
            if steps[other] < mine * (1 - NOTABLE):
                lines.append(f"A {transport} that adds would bring it to {1e3 * steps[other]:.4g} ms.")
        return lines

    def _against(self, name: str) -> str:
        ratio = self.predictions[name].step / self.predictions[self.recommended.name].step
        if self.recommended.name == name:
            return f"{name} is it"
        return f"{name} takes {ratio:.2f} times as long"

    def _bottleneck(self, mine: Prediction) -> str:
        waits = mine.step - mine.compute
        share = 100 * waits / mine.step if mine.step else 0.0
        what = f"{1e3 * mine.wire:.4g} ms on the wire, {1e3 * mine.latency:.3g} ms of latency"
        return f"Training waits {share:.0f} % of the time for an exchange of {1e3 * mine.exchange:.4g} ms ({what})."


def plan(
    model: Any,
    *,
    workers: int,
    rate: float | None,
    round_trip: float = 1e-4,
    compute: float = 0.0,
    ranks_per_host: int = 1,
    cores: int | None = None,
    overlap: float = OVERLAP,
    every: int = 100,
    server_rate: float | None = None,
    machine: Machine | None = None,
) -> Plan:
    """Predict steps of a model for every way of averaging.

    Law: more rate never makes a step longer. Cost: milliseconds; nothing is measured.

    Parameters
    ----------
    model
        A torch module, of which parameters that need gradients count, or their number.
    workers
        Ranks that average.
    rate
        Bits per second of each host's link, in each direction; None: no limit.
    round_trip
        Seconds from one host to another and back.
    compute
        Seconds of a step without exchange; 0: predict exchanges alone.
    ranks_per_host, cores
        Ranks that share a host's cores; default: one, and the cores of this machine.
    overlap
        Share of the compute time that exchanges may run beside: the backward pass.
    every
        Steps between exchanges of DiLoCo.
    server_rate
        Of a parameter server's link; default: the workers'.
    machine
        What work costs there; default: this machine's calibration if there is one, otherwise `DEFAULT`.

    Examples
    --------
    >>> found = plan(110e6, workers=4, rate=1e9, compute=1.0, machine=DEFAULT, cores=8)
    >>> found.recommended.code
    'attach(model, bits=4)'
    """
    whole_number("every", every, 2, 10**6)
    if rate is not None:
        real_number("rate", rate, 1e3, 1e13)
    own = load() if machine is None else machine
    job = Job(
        values=parameters_of(model), workers=workers, compute=compute, ranks_per_host=ranks_per_host,
        cores=get_num_cores() if cores is None else cores, overlap=overlap,
    )  # fmt: skip
    server = None if server_rate is None else Link(server_rate, round_trip)
    return Plan(job, Link(rate, round_trip), own or DEFAULT, own is not None, tuple(_options(workers, every, server)))


def parameters_of(model: Any) -> int:
    """Of a torch module, or the number itself.

    >>> parameters_of(25e6)
    25000000
    """
    if hasattr(model, "parameters"):
        count = sum(each.numel() for each in model.parameters() if each.requires_grad)
        if count == 0:
            raise ConfigError("the model has no parameters that need gradients: nothing would be exchanged")
        return int(count)
    number = int(model) if isinstance(model, float) and model.is_integer() else model
    return whole_number("parameters", number, 1, MOST_VALUES)


def describe_break_even(rate: float) -> str:
    """
    >>> describe_break_even(3.21e9), describe_break_even(0.0)
    ('faster on links below 3.2 Gbit/s', 'faster on no link')
    """
    if rate == 0.0:
        return "faster on no link"
    return (
        "faster on any link" if rate == float("inf") else f"faster on links below {format_rate(float(f'{rate:.2g}'))}"
    )


def _options(workers: int, every: int, server: Link | None) -> list[Option]:
    """From exact to coarse, on each transport."""
    codecs = {bits: Lattice(workers, bits, energy=ENERGY) for bits in WIDTHS}
    group, at_server = transports.over_group, partial(transports.over_server, server=server)
    found = [
        Option("fp32", "all-reduce", transports.dense, "DistributedDataParallel(model)"),
        Option("bf16", "all-reduce", partial(transports.dense, kind="bf16"), "bf16_compress_hook", bits=16),
        Option("fp16", "all-reduce", partial(transports.dense, kind="fp16"), "fp16_compress_hook", bits=16),
    ]
    for bits, codec in codecs.items():
        use = partial(group, codec=codec)
        found.append(Option(f"{bits} bits", "process group", use, f"attach(model, bits={bits})", bits))
    exact = Lattice(workers, BITS, energy=ENERGY, down_bits="exact")
    code = f'attach(model, codec=Lattice({workers}, {BITS}, down_bits="exact"))'
    name = f"{BITS} bits, exact sums"
    found.append(Option(name, "process group", partial(group, codec=exact), code, BITS))
    for bits, codec in codecs.items():
        code = f"attach(model, bits={bits}, server=...)"
        found.append(Option(f"{bits} bits, server", "server", partial(at_server, codec=codec), code, bits))
    for bits, codec in codecs.items():
        use, code = partial(transports.by_packets, codec=codec), f'attach(model, bits={bits}, server="udp://...")'
        found.append(Option(f"{bits} bits, switch", "switch", use, code, bits))
    code = f"DiLoCo(model, optimizer, every={every}, bits={{}})"
    found.append(Option("DiLoCo, fp32", "process group", transports.dense, code.format(32), every=every))
    use = partial(group, codec=codecs[BITS])
    found.append(Option(f"DiLoCo, {BITS} bits", "process group", use, code.format(BITS), BITS, every))
    return found
