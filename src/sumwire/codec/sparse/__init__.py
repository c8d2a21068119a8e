"""Lossless sums of mostly-zero tensors: by owners of shards, or compacted for transports that can only sum."""

from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.sparse.compact import Compact

__all__ = ["Compact", "Sparse"]
