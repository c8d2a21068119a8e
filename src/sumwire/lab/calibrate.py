"""Measure what exchanges cost this machine, for `sumwire plan`.

Everything is CPU time, not elapsed time, so that other work on the machine disturbs it less. Two ranks on the loopback
device measure kernels and collectives at the same time; then four and eight, steps of a small model in DDP:
`calibrate_ranks.py`.
"""

from __future__ import annotations

from typing import Any

from sumwire.aggregate.cost_model import Machine
from sumwire.codec.options import whole_number
from sumwire.lab.calibrate_ranks import FEW
from sumwire.lab.launch import launch
from sumwire.lab.links import links
from sumwire.lab.record import machine as machine_name

VALUES = 1 << 23
"""More than caches hold: gradients of a step are in none."""
REPEATS = 9
_AS_MEASURED = ("propose", "encode", "add", "narrow", "decode", "copy", "cast", "exchange")
RANKS = {2: "all", 4: "steps", 8: "steps"}
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
    costs, some, more = lines
    # Steps of more ranks have the same values, and more messages: 4 to each other rank (`sharded`).
    fewer, most = sorted(RANKS)[1:]
    message = max(0.0, (more["coded"] - some["coded"]) / (4 * (most - fewer)))
    # Of two ranks, each sends as many bytes as its tensor has: half of it, twice.
    all_reduce = costs["fp32"] / 4
    kernels = FEW * sum(costs[name] for name in ("propose", "encode", "add", "decode"))
    ring = 2 * (fewer - 1)
    step = max(0.0, some["plain"] - ring * message - all_reduce * 4 * FEW * ring / fewer)
    return Machine(
        name=machine_name(),
        **{name: costs[name] for name in _AS_MEASURED},
        residual=max(0.0, costs["with_residual"] - costs["propose"] - costs["encode"]),
        # Of two ranks, each adds half of the values.
        bf16=max(0.0, 2 * (costs["bf16"] - costs["cast"] - 2 * all_reduce)),
        fp16=max(0.0, 2 * (costs["fp16"] - costs["cast"] - 2 * all_reduce)),
        all_reduce=all_reduce,
        message=message,
        round=max(0.0, some["coded"] - 4 * (fewer - 1) * message - step - kernels),
        step=step,
    )
