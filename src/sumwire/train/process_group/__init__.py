"""Backend "sumwire" of torch.distributed: a process group for every framework, whether it has hooks or not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from sumwire.aggregate.group.communicator import OWN
from sumwire.aggregate.group.group import FIRST_ROUNDS
from sumwire.errors import ConfigError
from sumwire.train.process_group.group import SumwireGroup
from sumwire.train.process_group.options import GroupOptions, make_options

__all__ = ["GroupOptions", "SumwireGroup", "register_backend"]

FIRST_TORCH = "2.7"
"""The oldest that has what process groups in Python need."""

_defaults = GroupOptions()


def register_backend(**options: Any) -> GroupOptions:
    """Make "sumwire" a backend of torch.distributed, in this process. `import sumwire.torch` does so, too.

    Law: groups that are made from now on, without `pg_options` of their own, have these options; those that exist keep
    theirs. Cost: none, until a group is made.

    Parameters
    ----------
    options
        Those of `GroupOptions`.

    Raises
    ------
    ConfigError
        For an option that is not known, or makes no sense; and with torch 2.6.

    Examples
    --------
    >>> options = register_backend(bits=4, min_size=100_000)
    >>> dist.init_process_group("cpu:sumwire")              # doctest: +SKIP
    """
    global _defaults
    if torch.__version__ < FIRST_TORCH:  # which torch compares as versions
        raise ConfigError(
            f'backend "sumwire" needs torch {FIRST_TORCH} or newer: torch {torch.__version__} loses the errors of '
            "process groups written in Python; upgrade torch, or use sumwire.train.attach"
        )
    _defaults = make_options(**options)
    if OWN not in dist.Backend.backend_list:
        dist.Backend.register_backend(OWN, _create, extended_api=True, devices=["cpu"])
    return _defaults


def _create(where: Any, options: GroupOptions | None) -> SumwireGroup:
    if options is not None and not isinstance(options, GroupOptions):
        raise ConfigError(
            f"pg_options is a {type(options).__name__}: pass sumwire.train.GroupOptions(...), or omit it and call "
            "sumwire.train.register_backend(...) before"
        )
    chosen = _defaults if options is None else options
    first = None if chosen.seed is None else _first_round(where.global_ranks_in_group or range(where.group_size))
    return SumwireGroup(where.store, where.group_rank, where.group_size, where.timeout, chosen, first_round=first)


def _first_round(ranks: Iterable[int]) -> int:
    """One for each set of ranks: groups that have a seed in common must not round alike."""
    digest = hashlib.blake2b(repr(list(ranks)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % FIRST_ROUNDS
