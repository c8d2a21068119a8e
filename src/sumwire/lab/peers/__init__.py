"""Published compression schemes, written anew from their papers, to compare with: accuracy per bit, and in training.

base.py          what all have in common: tensors in, a mean and its bits out; how bits are counted
quantizer.py     values to arrays that travel, and back
exchange.py      at an owner, at everybody, along a ring (hops.py)
casts.py         float32, float16, bfloat16
integers.py      QSGD, ZeRO++ qgZ, SDP4Bit
ternary.py       TernGrad
block_float.py   MXFP4, MXFP6, fp8 by rows
sparse.py        TopK, Deep Gradient Compression
low_rank.py      PowerSGD
feedback.py      EF-signSGD, LoCo
dynamic.py       a scheme in the manner of DynamiQ
recompressed.py  Sumwire's Lattice, decompressed and recompressed at a server
registry.py      all of them by name
installed.py     packages that are found at run time, and measured by their own code: from_hivemind.py, from_torchft.py

All are simulated in one process; `sumwire.lab.wired` runs them over a process group, by the same code. Docstrings say
which settings are published and what was simplified.
"""

from sumwire.lab.peers.base import Outcome, Peer
from sumwire.lab.peers.registry import ADJUSTABLE, PEERS, at_bits

__all__ = ["ADJUSTABLE", "PEERS", "Outcome", "Peer", "at_bits"]
