"""The recipes of docs/process-group.md and docs/sites.md for Ray Train, with the real package where it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.train.torch", reason="Ray Train is not installed, as it is large: pip install 'ray[train]'")

SCRIPT = """
import tempfile, zlib
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train_one(config):
    import torch, torch.distributed as dist, ray.train.torch
    from sumwire.train import register_backend

    register_backend(bits=4)
    group = dist.new_group(backend="sumwire")
    torch.manual_seed(0)
    net = torch.nn.Linear(400, 250)
    model = ray.train.torch.prepare_model(net, parallel_strategy_kwargs={"process_group": group})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(6, 400, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = zlib.crc32(net.weight.detach().numpy())
    print(f"rank {dist.get_rank()}: {group.statistics.values} values, weights {weights:08x}", flush=True)
    across_sites()

def across_sites():
    import torch, torch.distributed as dist
    from sumwire.train import DiLoCo

    net = torch.nn.Linear(400, 250)
    optimizer = torch.optim.AdamW(net.parameters())
    diloco = DiLoCo(net, optimizer, every=2)
    for step in range(4):
        x = torch.randn(6, 400, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    bits = diloco.statistics.bits_per_value
    print(f"site {dist.get_rank()}: {diloco.steps} steps, {bits:.0f} bits, outer state {diloco.digest()}", flush=True)
    diloco.close()

ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
with tempfile.TemporaryDirectory() as folder:
    two, where = ScalingConfig(num_workers=2), RunConfig(storage_path=folder)
    TorchTrainer(train_one, scaling_config=two, run_config=where).fit()
ray.shutdown()
"""


def test_ray_train(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    said = set(re.findall(r"rank (\d): (\d+) values, weights ([0-9a-f]{8})", done.stdout + done.stderr))
    assert {rank for rank, _, _ in said} == {"0", "1"}, done.stdout + done.stderr
    assert {values for _, values, _ in said} == {str(3 * 250 * 401)}
    assert len({weights for _, _, weights in said}) == 1
    sites = set(re.findall(r"site (\d): 4 steps, (\d+) bits, outer state (\w+)", done.stdout + done.stderr))
    assert {site for site, _, _ in sites} == {"0", "1"}, done.stdout + done.stderr
    assert {bits for _, bits, _ in sites} == {"5"}  # of 32 in a ring of two
    assert len({state for _, _, state in sites}) == 1
