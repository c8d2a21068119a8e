"""A small GPT under torchrun with compressed gradients, whose job survives the loss of a worker.

    export OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/train_ddp.py --steps 200

Sumwire adds an import, `attach`, and its state in the checkpoints. When it is started again, by you or by torchrun, the
job resumes from its newest checkpoint and ends with the same bits as without the interruption. (Without the second
variable, torch 2.13 gives restarted workers the addresses of dead ones: pytorch#135712.)
"""

import argparse
import os
import shutil
import zlib
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from sumwire.train import attach

VOCAB, CONTEXT, WIDTH, LAYERS, HEADS = 256, 64, 128, 4, 4  # the text is bytes


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def batch(text: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (size, 1), generator=torch.Generator().manual_seed(seed))
    windows = text[starts + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def save(folder: Path, step: int, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, state) -> None:
    """All ranks write into one folder, which is renamed when it is complete: a crash leaves the last good one."""
    partial = folder / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    if state is not None:  # every rank has its own residuals
        torch.save(state.state_dict(), partial / f"sumwire-rank-{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, partial / "model.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        partial.rename(folder / f"step-{step:06}")
        for old in sorted(folder.glob("step-*"))[:-2]:
            shutil.rmtree(old)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="text file to train on; default: Python's documentation")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--bits", type=int, default=4, help="bits per value that a rank sends")
    parser.add_argument("--compress", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--checkpoints", type=Path, default=Path("checkpoints"), help="folder of checkpoints; resumes from the newest"
    )
    parser.add_argument("--save-every", type=int, default=50)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = args.text.read_bytes() if args.text else "\n".join(topics[key] for key in sorted(topics)).encode()
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    torch.manual_seed(0)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    state = None
    if args.compress:
        # Links within one machine are so fast that Sumwire would fall back to all-reduce: fallback=False.
        state = attach(model, bits=args.bits, fallback=False)

    start = 0
    if saved := sorted(args.checkpoints.glob("step-*")):
        start = int(saved[-1].name.removeprefix("step-"))
        checkpoint = torch.load(saved[-1] / "model.pt")
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        own = saved[-1] / f"sumwire-rank-{rank}.pt"
        if state is not None and own.exists():  # no file after a --no-compress run
            state.load_state_dict(torch.load(own))
    print(f"rank {rank} pid {os.getpid()} starts at step {start}", flush=True)

    plain_bytes = 2 * (ranks - 1) * 4 * sum(p.numel() for p in model.parameters()) // ranks  # a ring all-reduce
    for step in range(start, args.steps):
        inputs, targets = batch(text, args.batch, seed=step * ranks + rank)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            sent = state.statistics.sent if state is not None else plain_bytes
            print(f"step {step} loss {loss.item():.4f} sent {sent} bytes, plain {plain_bytes}", flush=True)
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            save(args.checkpoints, step + 1, model, optimizer, state)

    weights = parameters_to_vector(model.parameters()).detach().numpy()
    print(f"rank {rank} done: weights {zlib.crc32(weights):08x}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
