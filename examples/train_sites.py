"""A small GPT at several sites that exchange 4 bits per parameter every 50 steps: DiLoCo over a Sumwire server.

    python examples/train_sites.py --sites 3

That starts a server and three sites, all on this machine. Or start each where it belongs, over links as slow as you
like, with the same SUMWIRE_TOKEN: `sumwire serve --workers 3 --quorum 2 --linger 60 --timeout 600 --host 0.0.0.0 --port
4650`, and this with `--sites 3 --site 0 --server server:4650`, `--site 1` and `--site 2`.

Rounds wait for all sites that are connected. Kill one: the others, a quorum, go on without it. Start it again: it takes
parameters and outer state from the others at their next exchange, and goes on.
"""

import argparse
import logging
import os
import subprocess
import sys
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sumwire import Server
from sumwire.train import DiLoCo

VOCAB, CONTEXT, WIDTH, LAYERS, HEADS = 256, 64, 128, 4, 4  # the text is bytes


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


def batch(text: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (size, 1), generator=generator)
    windows = text[starts + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def train(args: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format=f"site {args.site}: %(message)s")
    torch.set_num_threads(1)
    text = "\n".join(topics[key] for key in sorted(topics)).encode()
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    share = len(text) // args.sites  # every site has a text of its own
    mine, held_out = text[args.site * share : (args.site + 1) * share - 5000], text[(args.site + 1) * share - 5000 :]
    generator = torch.Generator().manual_seed(args.site)

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    token = os.environ.get("SUMWIRE_TOKEN", "")
    diloco = DiLoCo(
        model, optimizer, args.server, rank=args.site, workers=args.sites, job="gpt", token=token,
        every=args.every, bits=args.bits,
    )  # fmt: skip

    while diloco.steps < args.steps:
        inputs, targets = batch(mine, args.batch, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()  # and, every args.every steps, an exchange with the other sites
        if diloco.steps % args.every == 0:
            with torch.no_grad():
                inputs, targets = batch(held_out, 32, torch.Generator().manual_seed(0))
                loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
            plan = f"; {diloco.plan.sentence()}" if diloco.plan else ""
            print(
                f"site {args.site} step {diloco.steps} loss {loss:.3f} outer state {diloco.digest()[:8]}{plan}",
                flush=True,
            )
    diloco.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--site", type=int, help="which one this is; default: start a server and all sites here")
    parser.add_argument("--server", default="127.0.0.1:4650")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps from one exchange to the next")
    parser.add_argument("--bits", type=int, default=4, help="bits per parameter and exchange; 32: fp32")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    if args.site is not None:
        train(args)
        return
    with Server(args.sites, quorum=min(args.sites, max(2, args.sites - 1)), linger=60, timeout=600) as server:
        command = [sys.executable, *sys.argv, "--server", server.address]
        sites = [subprocess.Popen([*command, "--site", str(site)]) for site in range(args.sites)]
        sys.exit(max(site.wait() for site in sites))


if __name__ == "__main__":
    main()
