"""Importing this makes "sumwire" a backend of torch.distributed: the whole purpose of the module.

Plug-ins of torch register themselves so, because a launcher or framework can be told to import a module more often than
to call a function. Where a call is possible, `sumwire.train.register_backend(bits=...)` does the same, with options.

>>> import sumwire.torch
>>> import torch.distributed as dist
>>> dist.is_backend_available("sumwire")
True
>>> dist.init_process_group("cpu:sumwire")                                  # doctest: +SKIP
"""

from __future__ import annotations

from sumwire.train.process_group import GroupOptions, register_backend

__all__ = ["GroupOptions", "register_backend"]

register_backend()
