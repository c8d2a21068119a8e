"""Lightning, transformers and Accelerate: their examples as torchrun runs them, resumed with and without our state.

Imports take most of the time: ranks are forks of one process that has imported everything. What is at the end of this
file is what they run.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import runpy
import shutil
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sumwire import Server
from sumwire.errors import ConfigError
from sumwire.train import DDPState, attach, hook, register_backend
from sumwire.train.wrappers import find
from tests.torchrun import ROOT, Launcher

RUN = re.compile(r"rank (\d) after (\d+) steps: loss ([\d.]+), ([\d.]+) bits per value, weights ([0-9a-f]{8})")
MODULES = {"lightning": "lightning.pytorch", "transformers": "transformers.trainer", "accelerate": "accelerate"}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    installed = [module for name, module in MODULES.items() if importlib.util.find_spec(name)]
    with Launcher("sumwire.train", *installed) as launcher:
        yield launcher


def run(launcher: Launcher, framework: str, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """What each run of an example came to, and all that was printed."""
    done = launcher.run(2, "tests.train.test_frameworks", framework, str(folder))
    said = done.stdout + done.stderr
    assert not done.failed, said
    ranks = [[found.groups()[1:] for found in RUN.finditer(said) if found[1] == rank] for rank in "01"]
    runs = []
    for first, second in zip(*ranks, strict=True):
        assert (first[0], first[3]) == (second[0], second[3])  # steps and weights
        assert 2 < float(first[2]) < 10  # a ring of two would send 32
        runs.append({"steps": int(first[0]), "loss": float(first[1]), "weights": first[3]})
    return runs, said


def test_lightning(launcher: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (whole, resumed, stripped), said = run(launcher, "lightning", tmp_path)
    assert whole["steps"] == 58
    assert whole["loss"] < 1.5  # random guesses: ln(10) = 2.3
    assert resumed == whole
    assert said.count("the checkpoint holds states of 0 ranks and this job has 2: compression starts afresh") == 1
    assert stripped["steps"] == 29
    assert stripped["weights"] != whole["weights"]
    # Should this fail, Lightning has learnt to register hooks on CPUs, and the callback's docstring is out of date.
    assert said.count("DDPStrategy(ddp_comm_hook=hook): 0 hooks, 0 steps") == 2
    for name in ("bits_per_value", "sent_bytes", "encode_seconds"):
        assert f"'sumwire/{name}'" in said


def test_transformers_and_accelerate(launcher: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (whole, resumed, stripped, accelerate), said = run(launcher, "transformers", tmp_path)
    assert whole["steps"] == 20
    assert whole["loss"] < 3  # random guesses: ln(64) = 4.2
    assert resumed == whole
    assert len(re.findall(r"sumwire-rank-0.pt is not there for all of 2 ranks: compression starts afresh", said)) == 1
    assert stripped["steps"] == 10
    assert stripped["weights"] != whole["weights"]
    assert accelerate["steps"] == 29
    assert accelerate["loss"] < 1.8


def test_a_process_group_serves_all_of_them(launcher: Launcher, tmp_path: Path) -> None:
    for needed in MODULES:
        pytest.importorskip(needed)
    done = launcher.run(2, "tests.train.test_frameworks", "backend", str(tmp_path))
    said = done.stdout + done.stderr
    assert not done.failed, said
    for framework in MODULES:
        compressed = re.findall(rf"^{framework}: (\d+) values, weights ([0-9a-f]+)$", said, flags=re.M)
        assert len(compressed) == 2, said
        assert len(set(compressed)) == 1
        assert int(compressed[0][0]) >= 3 * 100_000


def test_diloco_recipes(launcher: Launcher, tmp_path: Path) -> None:
    for needed in MODULES:
        pytest.importorskip(needed)
    with Server(2, token="a-long-random-word") as server:
        done = launcher.run(2, "tests.train.diloco.frameworks", server.address, str(tmp_path))
    said = done.stdout + done.stderr
    assert not done.failed, said
    for framework in ("Accelerate", "Lightning", "transformers"):
        sites = re.findall(rf"^{framework}: 20 steps, ([\d.]+) bits, (\w+)$", said, flags=re.M)
        assert len(sites) == 2, said
        assert len({state for _, state in sites}) == 1
        assert all(4 < float(bits) < 6 for bits, _ in sites)


@pytest.fixture
def callback() -> Any:
    pytest.importorskip("lightning")
    from sumwire.train.lightning import SumwireCallback

    return SumwireCallback(bits=4)


def test_lightning_strategies_that_do_not_wrap_in_ddp_are_named(callback: Any) -> None:
    class FSDPStrategy:
        model = torch.nn.Linear(2, 2)

    with pytest.raises(ConfigError, match=r'FSDPStrategy sends: use Trainer\(strategy="ddp"\)'):
        callback.on_fit_start(SimpleNamespace(world_size=2, strategy=FSDPStrategy()), None)


def test_lightning_with_one_process_has_nothing_to_do(callback: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sumwire"):
        callback.on_fit_start(SimpleNamespace(world_size=1), None)
    assert "nothing to compress" in caplog.text
    callback.on_train_batch_end(None, None, None, None, 0)
    checkpoint: dict[str, Any] = {}
    callback.on_save_checkpoint(None, None, checkpoint)
    assert checkpoint == {}
    callback.on_fit_end(None, None)


def test_lightning_does_not_wait_for_other_ranks_when_one_has_failed(callback: Any) -> None:
    callback.state = DDPState(bits=4)
    checkpoint: dict[str, Any] = {}
    callback.on_save_checkpoint(SimpleNamespace(interrupted=True), None, checkpoint)
    assert checkpoint == {}


def test_transformers_without_ddp(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("transformers")
    from sumwire.train.huggingface import SumwireTrainerCallback

    callback: Any = SumwireTrainerCallback(bits=4)
    with caplog.at_level(logging.INFO, "sumwire"):
        callback.on_train_begin(SimpleNamespace(world_size=1), None, None)
    assert "nothing to compress" in caplog.text
    with pytest.raises(ConfigError, match="FSDP or DeepSpeed"):
        callback.on_train_begin(SimpleNamespace(world_size=2), None, None, model=torch.nn.Linear(2, 2))


@pytest.mark.parametrize("module", ["lightning", "huggingface"])
def test_bad_options_fail_at_once(module: str) -> None:
    pytest.importorskip({"huggingface": "transformers"}.get(module, module))
    if module == "lightning":
        from sumwire.train.lightning import SumwireCallback as Callback
    else:
        from sumwire.train.huggingface import SumwireTrainerCallback as Callback
    with pytest.raises(ConfigError, match="warmup=-1"):
        Callback(bits=4, warmup=-1)


# What the ranks run


def example(name: str, *arguments: str) -> None:
    sys.argv = [name, *arguments]
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def lightning_ranks(folder: Path) -> None:
    arguments = ("train_lightning.py", "--epochs", "2", "--out", str(folder))
    example(*arguments)
    first, last = folder / "epoch=0-step=29.ckpt", folder / "last.ckpt"
    for key in ("nothing", "sumwire"):
        if dist.get_rank() == 0:
            checkpoint = torch.load(first)
            checkpoint.pop(key, None)
            torch.save(checkpoint, last)
        dist.barrier()
        example(*arguments)

    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.strategies import DDPStrategy

    from sumwire.train.lightning import SumwireCallback

    class Model(BoringModel):
        def on_train_start(self) -> None:
            assert find(self) is self.trainer.strategy.model

        def on_train_end(self) -> None:
            self.hooks = len(self.trainer.strategy.model._comm_hooks)

    quiet = {"accelerator": "cpu", "devices": 2, "max_steps": 3, "default_root_dir": folder, "log_every_n_steps": 1}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0}
    state, model = DDPState(bits=4), Model()
    Trainer(strategy=DDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook), **quiet).fit(model)
    print(f"DDPStrategy(ddp_comm_hook=hook): {model.hooks} hooks, {state.step} steps\n", flush=True)
    trainer = Trainer(strategy="ddp", callbacks=[SumwireCallback(bits=4, log=True, fallback=False)], **quiet)
    trainer.fit(model)
    assert model.hooks == 1
    print(sorted(trainer.logged_metrics), flush=True)
    assert running() == []
    trainer.save_checkpoint(folder / "after.ckpt")
    if dist.get_rank() == 0:
        saved = torch.load(folder / "after.ckpt")["sumwire"]
        assert [(state["rank"], state["step"]) for state in saved] == [(0, 3), (1, 3)]
    trainer.test(model, verbose=False)
    with_two = SumwireCallback(bits=2, fallback=False)
    Trainer(strategy="ddp", callbacks=[with_two], **quiet | {"max_steps": 5}).fit(
        model, ckpt_path=folder / "after.ckpt"
    )
    assert with_two.state.step == 5
    fabric_model()

    class Broken(BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ValueError("broken")
            return super().training_step(batch, batch_idx)

    callback = SumwireCallback(bits=4)
    with pytest.raises(ValueError, match="broken"):
        Trainer(strategy="ddp", callbacks=[callback], **quiet).fit(Broken())
    callback.state.close()  # nothing but waiting is left to do
    assert running() == []
    assert callback.state.state_dict()["step"] == 2


def fabric_model() -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    learns_compressed(fabric.setup(torch.nn.Linear(200, 100)))


def learns_compressed(model: Any) -> None:
    """attach finds the DDP in it, and a backward pass goes through Sumwire."""
    state = attach(model, bits=4, warmup=0, fallback=False, sample_every=0)
    model(torch.ones(3, 200)).square().mean().backward()
    assert state.step == 1
    assert 4 < state.statistics.bits_per_value < 6
    state.close()


def transformers_ranks(folder: Path) -> None:
    arguments = ("train_hf_trainer.py", "--steps", "20", "--out", str(folder))
    example(*arguments)
    for lost in ("nothing", "sumwire-rank-1.pt"):
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder / "checkpoint-20")
            (folder / "checkpoint-10" / lost).unlink(missing_ok=True)
        dist.barrier()
        example(*arguments)
    train_twice(folder)
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    learns_compressed(Accelerator(cpu=True, dynamo_backend="eager").prepare(torch.nn.Linear(200, 100)))
    AcceleratorState._reset_state()
    example("train_accelerate.py", "--epochs", "1")  # the last, as it ends the process group


def train_twice(folder: Path) -> None:
    """The trainer keeps its wrapper, and DDP its hook, when train() is called again."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from sumwire.train.huggingface import SumwireTrainerCallback

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (super().forward(x) - labels).square().mean()}

    compress = SumwireTrainerCallback(bits=4, fallback=False, log=True)
    seen: list[dict[str, float]] = []

    class Reporter(TrainerCallback):
        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            seen.append(dict(logs))

    where = folder / "twice"
    options: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 1}
    arguments = TrainingArguments(str(where), max_steps=3, save_strategy="steps", save_steps=3, **options)
    data = [{"x": torch.ones(100), "labels": torch.zeros(50)}] * 64
    trainer = Trainer(Model(100, 50), arguments, train_dataset=data, callbacks=[Reporter(), compress])
    for steps in (3, 6):
        trainer.train()
        assert compress.state is not None
        assert compress.state.step == steps
        assert running() == []
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3
    for entry in [*logged, *(entry for entry in seen if "loss" in entry)]:
        assert entry["sumwire/bits_per_value"] > 4
    dist.barrier()
    other = SumwireTrainerCallback(bits=2, fallback=False)
    arguments = TrainingArguments(str(where), max_steps=5, save_strategy="no", **options)
    trainer = Trainer(Model(100, 50), arguments, train_dataset=data, callbacks=[other])
    trainer.train(resume_from_checkpoint=str(where / "checkpoint-3"))
    assert other.state is not None
    assert other.state.step in (5, 8)  # the checkpoint of the first training, or of the second


def backend_ranks(folder: Path) -> None:
    """The recipe of docs/process-group.md: init_process_group, then the framework, unchanged."""
    from accelerate import Accelerator
    from lightning.pytorch import LightningModule, Trainer
    from transformers import Trainer as HFTrainer
    from transformers import TrainingArguments

    register_backend(bits=4)
    dist.init_process_group("cpu:sumwire")
    before = 0

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(400, 250)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.layer(x) - labels).square().mean()}

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def report(framework: str, model: Model) -> None:
        nonlocal before
        values = dist.group.WORLD.statistics.values  # type: ignore[union-attr]
        weights = zlib.crc32(model.layer.weight.detach().contiguous().numpy())
        print(f"{framework}: {values - before} values, weights {weights:08x}\n", end="", flush=True)
        before = values

    x = torch.randn(6, 400, generator=torch.Generator().manual_seed(dist.get_rank()))
    data = [{"x": row, "labels": torch.zeros(250)} for row in x]
    model = Model()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "barebones": False}
    Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=3, default_root_dir=folder,
            enable_checkpointing=False, use_distributed_sampler=False, **quiet).fit(
        model, torch.utils.data.DataLoader(data))  # type: ignore[arg-type]  # fmt: skip
    report("lightning", model)
    model = Model()
    prepared, optimizer = Accelerator(cpu=True).prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        prepared(x, torch.zeros(6, 250))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    report("accelerate", model)
    model = Model()
    arguments = TrainingArguments(
        str(folder), max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    HFTrainer(model, arguments, train_dataset=data).train()  # type: ignore[arg-type]
    report("transformers", model)
    dist.destroy_process_group()


def running() -> list[str]:
    """Threads that states have."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sumwire-")]


if __name__ == "__main__":
    ranks = {"lightning": lightning_ranks, "transformers": transformers_ranks, "backend": backend_ranks}
    ranks[sys.argv[1]](Path(sys.argv[2]))
