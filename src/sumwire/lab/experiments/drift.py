"""Long runs: do residuals grow, and do workers' parameters drift apart, where packets get lost?"""

from __future__ import annotations

from collections.abc import Iterator

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.trainings import training
from sumwire.lab.simulate import Conditions, OverNetwork, Training
from sumwire.train.options import ENERGY

BITS = 4
WATCHED = (10, 30, 100, 300, 1000, 3000, 10_000)


def measure(point: Point) -> Iterator[Row]:
    workers, seed, loss, resync = (
        int(point["workers"]),
        int(point["seed"]),
        float(point["loss"]),
        int(point["resync"]),
    )
    codec = Lattice(workers, BITS, seed=seed, energy=ENERGY, feedback=True)
    method = OverNetwork(codec, Conditions(loss=loss), seed=seed)
    found: list[Row] = []

    def watch(step: int, run: Training) -> None:
        # Of some steps before: a single one is noisy.
        if any(0.95 * at < step <= at for at in WATCHED):
            recent.append((method.residual_norm() / run.gradient_norm, run.spread()))
        if step in WATCHED:
            residual, spread = (sum(column) / len(recent) for column in zip(*recent, strict=True))
            score = run.workload.score(run.models[0], run.data)
            about = {"case": f"{loss:.0%} lost{f', resync each {resync}' if resync else ''}", "step": step}
            found.append(about | {"quantity": "residual by gradient", "value": residual, "score": score})
            found.append(about | {"quantity": "parameters apart by", "value": spread, "score": score})
            recent.clear()

    recent: list[tuple[float, float]] = []
    run = training(point, resync=resync)
    run.constant, run.on_step = True, watch
    run.run(lambda size: method)
    return iter(found)


def _points(cases: tuple[tuple[float, int], ...], steps: int, seeds: int) -> list[Point]:
    return [
        {"workload": "perceptron", "workers": 4, "steps": steps, "loss": loss, "resync": resync, "seed": seed}
        for seed in range(seeds)
        for loss, resync in cases
    ]


EXPERIMENT = Experiment(
    name="drift",
    title="Long runs",
    question="Do residuals grow or workers' parameters drift apart in 10,000 steps where packets get lost?",
    quick=_points(((0.01, 0),), 1000, 1),
    full=_points(((0.01, 0), (0.01, 100)), 10_000, 3),
    measure=measure,
    columns={
        "case": "{case}", "seed": "{seed}", "step": "{step}", "quantity": "{quantity}", "value": "{value:.5f}",
        "accuracy": "{score:.4f}",
    },
    chart=Chart(
        x="step", y="value", series="case", panel="quantity", x_label="step", y_label="ratio of norms", log_x=True,
    ),
    notes=f"An MLP on digits, 4 workers, {BITS} bits with feedback, at a learning rate that does not fall. Residuals "
    "and gradients: root mean squares over workers. Parameters: distance of a worker's from the mean of all, by its "
    "norm; both averaged over the last steps before the one that is named.",
)  # fmt: skip
