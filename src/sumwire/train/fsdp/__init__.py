"""FSDP2's gradients, reduce-scattered in compressed form: `fully_shard`, then `sumwire.train.attach`."""

from sumwire.train.fsdp.state import FSDPOptions, FSDPState

__all__ = ["FSDPOptions", "FSDPState"]
