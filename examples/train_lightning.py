"""Lightning with compressed gradients: one callback. Resumes from its last checkpoint.

torchrun --standalone --nproc-per-node 2 examples/train_lightning.py
"""

import argparse
import zlib
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from sumwire.train.lightning import SumwireCallback


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("lightning"))
    args = parser.parse_args()

    seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    model = Digits()
    # Links within one machine are so fast that Sumwire would fall back to all-reduce: fallback=False.
    compress = SumwireCallback(bits=4, feedback=True, fallback=False, log=True)
    checkpoint = ModelCheckpoint(args.out, save_last=True, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=args.epochs, default_root_dir=args.out,
        callbacks=[compress, checkpoint], log_every_n_steps=1,
    )  # fmt: skip
    last = args.out / "last.ckpt"
    trainer.fit(model, DataLoader(data, batch_size=32, shuffle=True), ckpt_path=last if last.exists() else None)
    weights = parameters_to_vector(model.parameters()).detach().numpy()
    print(
        f"rank {trainer.global_rank} after {compress.state.step} steps: loss {trainer.callback_metrics['loss']:.4f}, "
        f"{compress.state.statistics.bits_per_value:.1f} bits per value, weights {zlib.crc32(weights):08x}"
    )


if __name__ == "__main__":
    main()
