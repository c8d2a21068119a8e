"""What `attach` returns for a model that went through `fully_shard`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

import torch
from torch.distributed.fsdp import FSDPModule

from sumwire.aggregate.group.group import Group
from sumwire.aggregate.lifetime import Lifetime
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.base import Codec
from sumwire.codec.options import same, whole_number
from sumwire.codec.stacked import Stacked
from sumwire.errors import ConfigError, RoundError
from sumwire.train.attached import Attached
from sumwire.train.checkpoint import check_fits, check_format
from sumwire.train.dtypes import check_dense, check_unit
from sumwire.train.fsdp.all_reduce import plain_group
from sumwire.train.fsdp.collective import Mesh
from sumwire.train.fsdp.peers import PeersByRanks
from sumwire.train.fsdp.reduce_scatter import CompressedReduceScatter
from sumwire.train.fsdp.unit import Unit, calls_in
from sumwire.train.options import CodecOptions, choose_codec

_log = logging.getLogger(__name__)

_FORMAT = 5
_KEYS = frozenset({"format", "units"})

_REFUSED = {
    "fallback": "units for which compressing would not pay are found by size alone",
    "exact_below": "FSDP2 hands over all parameters of a unit as one tensor; shard small ones apart",
    "span": "a unit is averaged in one round; shard smaller modules",
    "algorithm": "a reduce-scatter is always sharded",
    "server": "a server hands out whole sums, and a rank needs its shard only; use DDP",
    "sample_every": "no rank has the truth to compare with; measure with DDP, or with `benchmarks.accuracy`",
    "resync": "every rank has its own shard of the parameters, so there is nothing to make equal",
}
"""Options of DDP that make no sense here, and why."""


class FSDPOptions(CodecOptions, total=False):
    """Options of `attach` for FSDP2; the same at every rank but for `log`.

    warmup  first calls of each unit's reduce-scatter, and of its all-reduce, that are sent exactly (default 0); units
            for which it would not pay, always
    log     called as log(name, value, step) after each step, or a TensorBoard writer
    """

    warmup: int
    log: Any


class FSDPState(Attached):
    """Units, statistics, and what belongs in a checkpoint.

    Law: a shard's gradient has the bits of `sumwire.average` over the ranks' rows; on a 2-D mesh (HSDP), of
    `sumwire.average` over the replicas' shards, each of which has those. NaN and Inf come out where plain FSDP2 has
    them. Cost: b bits per coordinate on the wire for the reduce-scatter; between replicas, payloads and narrow sums of
    this rank's shard, as in DDP. With feedback, 8 bytes of memory for every coordinate of the whole, unsharded model,
    and with replicas for every coordinate of the shard: of the GPU where gradients stay there, else of the host.

    Parameters
    ----------
    model
        Went through `fully_shard`, and so perhaps did modules in it. All ranks must come here together, after the last
        `fully_shard` and before the first backward.
    bits
        Bits per coordinate that a rank sends (default 4).
    options
        See `FSDPOptions`.

    Examples
    --------
    >>> fully_shard(model)                                # doctest: +SKIP
    >>> state = sumwire.train.attach(model, bits=4)       # doctest: +SKIP
    """

    def __init__(self, model: torch.nn.Module, bits: int | None = None, **options: Unpack[FSDPOptions]) -> None:
        _check_known(options)
        self.warmup = options.pop("warmup", 0)
        if whole_number("warmup", self.warmup) < 0:
            raise ConfigError(f"warmup={self.warmup} is negative")
        super().__init__(options.pop("log", None))
        feedback = _choose(2, bits=bits, options=options).codec.feedback  # so that a bad option fails here
        self.units: dict[str, Unit] = {}
        found = _find(model)
        names = _names(model, found)
        check_dense(model, names, "FSDP2 has no reduce-scatter for them")
        for name, (_, parameters) in found.items():
            check_unit(name, parameters, names)
        _close_former([parameters for _, parameters in found.values()])
        settings = {"bits": bits, "feedback": feedback, "warmup": self.warmup, "FSDP units": ", ".join(found)}
        shards = PeersByRanks(partial(_choose, bits=bits, options=options), settings, "sharded", options.get("seed"))
        replicas = PeersByRanks(
            partial(_choose_between_replicas, bits=bits, options=options), settings, "auto", options.get("seed")
        )
        for name, (_, parameters) in found.items():
            mesh, device = parameters.mesh_info, parameters.device
            self.units[name] = Unit(
                self,
                shards.of(mesh.shard_process_group, device),
                replicas.of(plain_group(mesh.replicate_process_group), device) if Mesh.of(mesh).replicas > 1 else None,
                parameters,
                len(self.units),
            )
        for name, (module, parameters) in found.items():  # once nothing can fail any more
            self.units[name].install(module, parameters)
        self._peers = [*shards.made, *replicas.made]
        self._agreed = False
        self._lifetime = Lifetime(self, partial(_close, [each.group for each in self._peers]), "sumwire-end")
        self._lifetime.follow(*(parameters for _, parameters in found.values()))

    def state_dict(self) -> dict[str, Any]:
        return {"format": _FORMAT, "units": {name: unit.state_dict() for name, unit in self.units.items()}}

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        if self._agreed:
            raise ConfigError(f"a state that has done {self.step} steps cannot load another: attach anew")
        if not state:
            return
        check_format(state, _KEYS, _FORMAT, "FSDP2")
        saved = state["units"]
        if strict:
            same("the list of FSDP units", sorted(self.units), sorted(saved), "load this state")
            for name, unit in self.units.items():
                check_fits(unit.problem(saved[name]))
        calls = max(map(calls_in, saved.values()), default=0)
        dropped = [name for name, unit in self.units.items() if not unit.load_state_dict(saved.get(name), calls)]
        if dropped:
            _log.warning(
                "Sumwire: the residuals of %d FSDP units (%s, ...) do not fit and are dropped: what they held is lost, "
                "the rest is resumed", len(dropped), dropped[0],
            )  # fmt: skip
        self.step = calls

    def begin(self, calls: int) -> None:
        """A collective is called that had `calls` calls before: the first to get there begins a step."""
        if self._closed:
            raise RoundError("this state is closed: attach again, on all ranks together, to go on")
        if not self._agreed:
            # States that do not belong together would turn the same rows in other ways.
            collectives = [each for unit in self.units.values() for each in unit.collectives]
            done = ", ".join(str(each.calls) for each in collectives)
            for peers in self._peers:
                first = ", ".join(str(each.first_call) for each in collectives if each.peers is peers)
                peers.group.check_settings({"calls of FSDP units": done, "first calls of FSDP units": first})
            self._agreed = True
        if calls < self.step:
            return
        self._log_step()
        self.step, self.statistics = calls + 1, Statistics()


def _check_known(options: Mapping[str, object]) -> None:
    for name in sorted(options.keys() - FSDPOptions.__annotations__.keys()):
        known = ", ".join(sorted(FSDPOptions.__annotations__))
        why = f": {_REFUSED[name]}" if name in _REFUSED else ""
        raise ConfigError(f"option {name!r} does not work with FSDP2{why}. FSDP2 takes bits, {known}")


def _find(model: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """By name, every module with sharded parameters of its own, and these."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, module in model.named_modules():
        groups = _groups(module)
        if len(groups) > 1:
            raise ConfigError(
                f"module {name or '(root)'} shards its parameters over several meshes, for which FSDP2 takes no custom "
                "reduce-scatter: apply fully_shard to its submodules, one mesh each"
            )
        # Modules that were sharded together have one group.
        if groups and all(groups[0] is not parameters for _, parameters in found.values()):
            found[name or "(root)"] = module, groups[0]
    if not found:
        raise ConfigError(
            f"FSDP2 shards no parameters of this {type(model).__name__}: call fully_shard(model) before attach"
        )
    return found


def _names(model: torch.nn.Module, found: Mapping[str, tuple[Any, Any]]) -> dict[Any, str]:
    """Of all parameters that units shard; without their module's where the model has them unsharded just now."""
    known: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    sharded = [each for _, parameters in found.values() for each in parameters.fsdp_params]
    return {each.sharded_param: known.get(each.sharded_param, each._module_info.param_name) for each in sharded}


def _close_former(found: list[Any]) -> None:
    """Attaching again replaces the previous state."""
    used = [getattr(parameters, "_reduce_scatter_comm", None) for parameters in found]
    states = {id(each.state): each.state for each in used if isinstance(each, CompressedReduceScatter)}
    for state in states.values():
        state.give_way()


def _groups(module: torch.nn.Module) -> list[Any]:
    """FSDP2's own records of the parameters that it reduce-scatters for this module."""
    if not isinstance(module, FSDPModule):
        return []
    state: Any = module._get_fsdp_state()
    several = hasattr(state, "_fsdp_param_groups")  # not so in older torch
    groups = state._fsdp_param_groups if several else [state._fsdp_param_group]
    return [each for each in groups if hasattr(getattr(each, "mesh_info", None), "shard_process_group")]


def _close(groups: list[Group], patience: float | None) -> None:
    """Rounds run in the threads that call them, so that none is in flight."""
    for group in groups:
        group.close()


def _choose(workers: int, *, bits: int | None, options: CodecOptions) -> Stacked:
    codec = choose_codec(workers, bits, options, sums_travel=False)
    if codec.follows_up or options.get("codec") == "auto":
        raise ConfigError(
            f"codec={options.get('codec')!r} does not work with FSDP2, whose reduce-scatter is a single exchange: use "
            "a Lattice or a Sparse codec"
        )
    return Stacked(codec, workers)


def _choose_between_replicas(workers: int, *, bits: int | None, options: CodecOptions) -> Codec:
    """The same options; a codec of the user's own is built anew, because that one is for the ranks of a replica."""
    codec = choose_codec(workers, bits, options)
    return codec if codec.workers == workers else type(codec)(**codec.options() | {"workers": workers})
