"""Accelerate with compressed gradients: attach to the prepared model.

accelerate launch --multi_gpu --num_processes 2 examples/train_accelerate.py

On CPUs, too, only --multi_gpu makes Accelerate start several processes (with --cpu it starts one, whatever
--num_processes says); `cpu=True` below keeps them off GPUs.
"""

import argparse
import zlib

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from sumwire.train import attach


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes == 1:
        parser.error("this is the only process, so there is nothing to average: start it as its first lines say")
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.Adam(net.parameters()), DataLoader(data, batch_size=32, shuffle=True)
    )
    # Links within one machine are so fast that Sumwire would fall back to all-reduce: fallback=False.
    state = attach(model, bits=4, fallback=False)

    for _ in range(args.epochs):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

    weights = parameters_to_vector(net.parameters()).detach().numpy()
    print(
        f"rank {accelerator.process_index} after {state.step} steps: loss {loss.item():.4f}, "
        f"{state.statistics.bits_per_value:.1f} bits per value, weights {zlib.crc32(weights):08x}"
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
