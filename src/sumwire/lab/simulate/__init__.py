"""Data-parallel training in one process: every step, the workers' gradients are averaged by some method.

methods.py   averages by a codec or by a peer, and counts bits
lossy.py     blocks that get lost, workers that come late, and what a residual takes back
train.py     the training itself, with one model for all workers, or one for each where results get lost
"""

from sumwire.lab.simulate.lossy import Conditions, OverNetwork
from sumwire.lab.simulate.methods import ByCodec, ByPeer, Exchange, Method, true_mean
from sumwire.lab.simulate.train import Outcome, Training

__all__ = ["ByCodec", "ByPeer", "Conditions", "Exchange", "Method", "Outcome", "OverNetwork", "Training", "true_mean"]
