"""A site that trains by the recipes of docs/sites.md, as they stand there; tests/train/test_frameworks.py starts two.

`python -m tests.train.diloco.frameworks ADDRESS FOLDER`, with the site's number in RANK.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule

from sumwire.train import DiLoCo
from tests.torchrun import ROOT

RECIPE = re.compile(r"^(\w+):\n\n```py\n(.*?)```", flags=re.S | re.M)


class Model(LightningModule):
    """What all three can train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(60, 50)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main(address: str, folder: str) -> None:
    site = int(os.environ.pop("RANK"))
    for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]  # a site is no rank of the others' group
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.manual_seed(site)
    data = [{"x": row, "labels": torch.zeros(50)} for row in torch.randn(64, 60)]
    page = (ROOT / "docs" / "sites.md").read_text()
    for name, code in RECIPE.findall(page.partition("## In a framework")[2].partition("\n## ")[0]):
        names: dict[str, Any] = {"site": site, "folder": str(Path(folder, f"{name}-{site}")), "data": data}
        names |= {"model": Model(), "loader": torch.utils.data.DataLoader(data, batch_size=8)}  # type: ignore[arg-type]
        names |= {"torch": torch, "itertools": itertools, "DiLoCo": DiLoCo}
        exec(compile(code.replace("server:4650", address), name, "exec"), names)
        diloco = names["diloco"] if "diloco" in names else names["sites"].diloco
        compressed = diloco.statistics.bits_per_value
        print(f"{name}: {diloco.steps} steps, {compressed:.1f} bits, {diloco.digest()}\n", end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
