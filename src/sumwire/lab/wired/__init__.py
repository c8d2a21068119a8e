"""Peers over a process group: one rank per process, real collectives, the quantizers and the state of `lab.peers`.

wire.py       bytes to all, to each owner and along a ring: counted, and timed
messages.py   arrays to the bytes of one message, and back
exchange.py   one rank's tensor in, the mean of all out
owner.py      what each owner averages and sends back; TernGrad's sums
gather.py     payloads that everyone gets
ring.py       partial means that are quantized again at each hop; DynamiQ's
registry.py   all of them by name
hook.py       the communication hook of DDP
bf16.py       another one: all-reduce in bfloat16

A value that is not finite, at any rank, makes the whole mean NaN at every rank, as an all-reduce would spread it.
"""

from sumwire.lab.wired.bf16 import bf16_hook
from sumwire.lab.wired.hook import PeerHook
from sumwire.lab.wired.registry import WIRED, build

__all__ = ["WIRED", "PeerHook", "bf16_hook", "build"]
