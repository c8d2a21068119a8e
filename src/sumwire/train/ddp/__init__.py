"""DistributedDataParallel's gradients, averaged in compressed form.

hook -> rounds in flight -> propose, join, encode -> add -> decode -> gradient
"""

from sumwire.train.ddp.state import DDPState, hook

__all__ = ["DDPState", "hook"]
