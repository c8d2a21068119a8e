"""Measure what exchanges cost this machine, for `sumwire plan`.

Everything is CPU time, not elapsed time, so that other work on the machine disturbs it less. Two ranks on the loopback
device measure kernels and collectives at the same time; then four and eight, steps of a small model in DDP:
`calibrate_ranks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sumwire.aggregate.cost_model import Machine, all_reduce, sharded
from sumwire.codec.options import whole_number
from sumwire.lab.calibrate_ranks import FEW_VALUES
from sumwire.lab.launch import launch
from sumwire.lab.links import links
from sumwire.lab.record import machine as machine_name

VALUES = 1 << 23
"""More than caches hold: gradients of a step are in none."""
REPEATS = 9
_AS_MEASURED = ("propose", "encode", "add", "narrow", "decode", "copy", "cast", "exchange")
RANKS = {2: "costs", 4: "steps", 8: "steps"}
"""How many ranks measure what. Those of steps share cores on a small machine, as ranks of its plans do."""
_TIMEOUT = 300.0


def calibrate(*, values: int = VALUES, repeats: int = REPEATS) -> Machine:
    """Measure this machine. Takes some seconds, most of them to start ranks.

    Parameters
    ----------
    values
        Of the tensors that are averaged.
    repeats
        Of each measurement; the median counts.
    """
    whole_number("values", values, 1 << 12, 1 << 28)
    whole_number("repeats", repeats, 1, 1000)
    lines: list[dict[str, Any]] = []
    for ranks, what in RANKS.items():
        with links(ranks, None) as network:
            arguments = [what, str(values), str(repeats)]
            launch(network, "sumwire.lab.calibrate_ranks", arguments, on_line=lines.append, timeout=_TIMEOUT)
    return machine_of(*lines)


def machine_of(costs: Mapping[str, float], of_four: Mapping[str, float], of_eight: Mapping[str, float]) -> Machine:
    """From what two ranks measured, and from steps of four and of eight."""
    few, many = (sharded(ranks, 0, 0, 0).messages for ranks in (4, 8))
    message = max(0.0, (of_eight["coded"] - of_four["coded"]) / (many - few))
    # Of two ranks, each sends as many bytes as its tensor has: half of it, twice.
    per_byte = costs["fp32"] / 4
    kernels = FEW_VALUES * sum(costs[name] for name in ("propose", "encode", "add", "decode"))
    ring = all_reduce(4, FEW_VALUES)
    step = max(0.0, of_four["plain"] - ring.messages * message - per_byte * ring.bits / 8)
    return Machine(
        name=machine_name(),
        **{name: costs[name] for name in _AS_MEASURED},
        residual=max(0.0, costs["with_residual"] - costs["propose"] - costs["encode"]),
        # Of two ranks, each adds half of the values.
        bf16=max(0.0, 2 * (costs["bf16"] - costs["cast"] - 2 * per_byte)),
        fp16=max(0.0, 2 * (costs["fp16"] - costs["cast"] - 2 * per_byte)),
        all_reduce=per_byte,
        message=message,
        round=max(0.0, of_four["coded"] - few * message - step - kernels),
        step=step,
    )
