"""Tensor -> Payload, Sum -> tensor: pure, no I/O."""
