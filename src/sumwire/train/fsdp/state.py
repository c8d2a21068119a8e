"""FSDP2's gradients, reduce-scattered in compressed form: `fully_shard`, then `attach`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from sumwire.aggregate.meter import Meter
from sumwire.train.reduce_scatter import FIRST_CALLS, Channel, Unit
from torch.distributed.fsdp import FSDPModule

from sumwire.aggregate.group.communicator import Wire, twins
from sumwire.aggregate.group.consistency import agree, random_number
from sumwire.aggregate.lifetime import Lifetime
from sumwire.codec.base import same, whole_number
from sumwire.codec.lattice.codec import Lattice
from sumwire.errors import ConfigError, RoundError
from sumwire.train.dtypes import check_dense, check_unit
from sumwire.train.options import build_codec
from sumwire.train.scalars import logger, scalars

_FORMAT = 2


class State:
    """What `attach` returns: figures, and what belongs in a checkpoint.

    Law: a shard's gradient has the bits of `sumwire.average` over the ranks' rows. NaN and Inf come out as
    from plain FSDP2. Cost: b bits a coordinate on the wire; with feedback, 8 bytes of host memory for every
    coordinate of the whole, unsharded model. Options, all the same at every rank but for `log`:

    bits           bits a coordinate that a rank sends (default 4)
    codec          instead of bits: a `Lattice` of your own
    feedback       keep what was not sent for the next step (default: see docs/training.md)
    energy         of the codec
    seed           of the codec: makes runs repeatable (default: random numbers that nobody can know before, the same at
                   all ranks and kept in checkpoints)
    warmup         so many first calls of each unit are sent exactly; units for which `pays` says no, always
    log            called as log(name, value, step) after each step, or a TensorBoard writer
    """

    def __init__(
        self,
        model: torch.nn.Module,
        bits: int | None = None,
        *,
        codec: Lattice | None = None,
        feedback: bool | None = None,
        energy: float | None = None,
        seed: int | None = None,
        warmup: int = 0,
        log: Any = None,
    ) -> None:
        if whole_number("warmup", warmup) < 0:
            raise ConfigError(f"warmup={warmup} is negative")
        options = {
            "bits": bits, "total_bits": None, "codec": codec, "feedback": feedback, "energy": energy, "seed": seed
        }  # fmt: skip
        self.feedback = build_codec(2, **options)[1]  # type: ignore[arg-type]
        self.warmup = warmup
        self._log = logger(log)
        self.step = 0
        """Backward passes that reduced gradients, with the one under way: the most calls of any unit."""
        self.meter = Meter()
        """Figures of the step under way, or of the last one; plain is a ring reduce-scatter."""
        self.units: dict[str, Unit] = {}
        found = _find(model)
        names = _names(model, found)
        check_dense(model, names, "FSDP2 has no reduce-scatter for them")
        for name, (_, parameters) in found.items():
            check_unit(name, parameters, names)
        settings = {"feedback": self.feedback, "warmup": warmup, "FSDP units": ", ".join(found)}
        channels: dict[tuple[int, ...], Channel] = {}
        for name, (module, parameters) in found.items():
            group = parameters.mesh_info.shard_process_group
            ranks = tuple(dist.get_process_group_ranks(group))
            channels[ranks] = channels.get(ranks) or _channel(group, options, settings)
            self.units[name] = Unit(self, channels[ranks], parameters, len(self.units))
            module.set_custom_reduce_scatter(self.units[name])
        self._channels = list(channels.values())
        self._agreed = self._closed = False
        wires = [channel.wire for channel in self._channels]
        self._lifetime = Lifetime(self, partial(_close, wires), "sumwire-end")
        self._lifetime.follow(*(parameters for _, parameters in found.values()))

    def close(self, timeout: float | None = None) -> None:
        """Log the last step and end the communicators; wait `timeout` seconds for that at most.

        A closed state cannot average any more, but its figures and its `state_dict` stay.
        """
        if not self._closed:
            self._log_step()
            self._closed = True
        self._lifetime.close(timeout)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs. Residuals are this rank's own: save it at every rank."""
        return {"format": _FORMAT, "units": {name: unit.state_dict() for name, unit in self.units.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of this rank, before the first step."""
        if self.step:
            raise ConfigError(f"a state that has done {self.step} steps cannot load another: attach anew")
        if set(state) != {"format", "units"} or state["format"] != _FORMAT:
            raise ConfigError(f"not an FSDP state of format {_FORMAT}: it has keys {sorted(state)}")
        same("the list of FSDP units", sorted(self.units), sorted(state["units"]), "load this state")
        for name, unit in self.units.items():
            unit.load_state_dict(state["units"][name])
        self.step = max(unit.calls for unit in self.units.values())

    def begin(self, calls: int) -> None:
        """A unit is called that had so many calls before: the first to get there begins a step."""
        if self._closed:
            raise RoundError("this state is closed: attach again, on all ranks together, to go on")
        if not self._agreed:
            # States that do not belong together would turn the same rows in other ways.
            done = ", ".join(str(unit.calls) for unit in self.units.values())
            for channel in self._channels:
                first = ", ".join(str(unit.first_call) for unit in self.units.values() if unit.channel is channel)
                agree(channel.wire, {"calls of FSDP units": done, "first calls of FSDP units": first})
            self._agreed = True
        if calls < self.step:
            return
        self._log_step()
        self.step, self.meter = calls + 1, Meter()

    def _log_step(self) -> None:
        if self._log is not None and self.meter.values:
            for name, value in scalars(self.meter).items():
                self._log(name, value, self.step - 1)


def attach(model: torch.nn.Module, bits: int | None = None, **options: Any) -> State:
    """Reduce-scatter this model's gradients in compressed form from now on.

    `model` went through `fully_shard`, and so perhaps did modules in it; the options are those of `State`.
    All ranks must call it together, after the last `fully_shard` and before the first backward. On a 2-D
    mesh (HSDP) the reduce-scatter within a replica is compressed, the all-reduce between replicas is not.

    >>> fully_shard(model)                                # doctest: +SKIP
    >>> state = attach(model, bits=4)                     # doctest: +SKIP
    """
    return State(model, bits, **options)


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


def _groups(module: torch.nn.Module) -> list[Any]:
    """FSDP2's own records of the parameters that it reduce-scatters for this module."""
    if not isinstance(module, FSDPModule):
        return []
    state: Any = module._get_fsdp_state()
    several = hasattr(state, "_fsdp_param_groups")  # not so in older torch
    groups = state._fsdp_param_groups if several else [state._fsdp_param_group]
    return [each for each in groups if hasattr(getattr(each, "mesh_info", None), "shard_process_group")]


def _close(wires: list[Wire], patience: float | None) -> None:
    """Rounds run in the threads that call them, so that none is under way."""
    for wire in wires:
        wire.close()


def _channel(group: dist.ProcessGroup, options: dict[str, Any], settings: Mapping[str, object]) -> Channel:
    [wire] = twins(group, 1, None)
    try:
        codec = _agreed_codec(wire, options, settings)
        first = random_number(wire) % FIRST_CALLS if options["seed"] is None else 0
        return Channel(codec, wire, first)
    except BaseException:
        wire.close()
        raise


def _agreed_codec(wire: Wire, options: dict[str, Any], settings: Mapping[str, object]) -> Lattice:
    codec, _ = build_codec(wire.ranks, **options)
    if options["codec"] is None:
        codec = replace(codec, table="optimal")  # its wider sums cost nothing, as they are not sent
    agree(wire, {"codec": repr(codec), "codec family": codec.family, **settings})
    if codec.workers != wire.ranks:
        raise ConfigError(
            f"the codec was built for workers={codec.workers}, the parameters are sharded over {wire.ranks} ranks: "
            f"build it with workers={wire.ranks}"
        )
    return codec
