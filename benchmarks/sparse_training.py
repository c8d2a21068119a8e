"""Time of a training step of a model with mostly zero gradients, for several methods of exchanging them.

    python -m benchmarks.sparse_training --workload ncf --rate 1Gbit --ranks 4 --steps 20

What a step includes and how bytes are counted: `sumwire.lab.sparse_training`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sumwire.lab.links import format_rate, links, parse_rate
from sumwire.lab.record import Record, add_option
from sumwire.lab.sparse_training import EXACT, METHODS, compare_steps, methods_of
from sumwire.lab.workloads import SPARSE, find


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "| | ms per step | min - max | speedup over fp32 | MB per step and rank | ranks bit-equal | loss |"
    yield "|---|---|---|---|---|---|---|"
    for line in lines:
        times, ratios, sent = line["ms_per_step"], line["fp32_over_it"], line["mb_per_step_and_rank"]
        cells = [line["method"], f"{times['median']:.0f}", f"{times['lowest']:.0f} - {times['highest']:.0f}"]
        cells.append(f"{ratios['median']:.2f} [{ratios['lowest']:.2f} - {ratios['highest']:.2f}]" if ratios else "")
        cells.append("" if sent is None else f"{sent:.2f}")
        cells.append({True: "yes", False: "NO", None: ""}[line["ranks_bit_equal"]])
        cells.append(f"{line['loss']:.4f}")
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=SPARSE, default="ncf")
    parser.add_argument("--rate", default="1Gbit", help="link rate: 100Mbit, 1Gbit, ... or unshaped")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, help="samples per rank")
    parser.add_argument("--methods", help=f"methods to compare, from {', '.join(METHODS)}")
    parser.add_argument("--seed", type=int, default=0)
    add_option(parser)
    given = parser.parse_args()
    workload = find(given.workload)
    workload = replace(workload, batch=given.batch or workload.batch)
    default = methods_of(workload)
    methods = given.methods.split(",") if given.methods else default
    if unknown := set(methods) - set(default):
        parser.error(f"no method {min(unknown)!r} for {workload.name}: choose from {', '.join(default)}")
    with links(given.ranks, parse_rate(given.rate)) as network:
        results = compare_steps(network, workload, methods, given.steps, seed=given.seed)
    print(f"\n### {workload.name}, {given.rate}, {given.ranks} ranks\n\n{workload.description}; trained with SGD here.")
    print(f"{network.note}; {results.parameters:,} parameters, {workload.batch} samples per rank and step,")
    print(f"{results.own:.2%} of a rank's gradient and {results.union:.2%} of the union over ranks is non-zero;")
    print(f"median of {given.steps} steps\n")
    methods_measured = list(results.figures())
    print("\n".join(table(methods_measured)), flush=True)
    about = {
        "workload": workload.name,
        "link": format_rate(rate) if (rate := parse_rate(given.rate)) and network.shaped else "not shaped",
        "ranks": given.ranks,
        "parameters": results.parameters,
        "batch": workload.batch,
        "own_nonzero_percent": 100 * results.own,
        "union_nonzero_percent": 100 * results.union,
        "steps": given.steps,
    }
    record = Record(given.json, seed=given.seed)
    for line in methods_measured:
        record.add(section="main", **about, **line)
    for name in EXACT:
        if results.identical.get(name) is False:
            sys.exit(f"{name}: ranks ended with different weights")


if __name__ == "__main__":
    main()
