"""BPF programs and maps: descriptors of the kernel, opened by the native library and closed here."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from ctypes import POINTER, c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.switch import privileges
from sumwire.aggregate.switch.privileges import SwitchError

MODES = ("tc", "xdp", "generic")


class _SwitchFds(ctypes.Structure):
    names = (
        "program", "egress", "slots", "jobs", "peers", "tables", "traffic", "refusals", "ports",
    )  # fmt: skip
    _fields_ = [(name, c_int32) for name in names]


class _ImpairFds(ctypes.Structure):
    names = ("inward", "outward", "impairments")
    _fields_ = [(name, c_int32) for name in names]


class _Library:
    """The functions of native/switch.h, declared when they are first needed."""

    def __init__(self) -> None:
        try:
            from sumwire.kernels.native import Array, function

            number, size = c_int32, POINTER(c_uint32)
            sizes = (c_uint32,) * 3
            self.load = function("sw_switch_load", c_int32, number, *sizes, POINTER(_SwitchFds))
            self.load_impair = function("sw_impair_load", c_int32, POINTER(_ImpairFds))
            self.attach_tc = function("sw_attach_tc", c_int32, number, c_uint32, number)
            self.attach_xdp = function("sw_attach_xdp", c_int32, number, c_uint32, number)
            self.update = function("sw_map_update", c_int32, number, c_uint32, Array)
            self.lookup = function("sw_map_lookup", c_int32, number, c_uint32, Array)
            self.run = function(
                "sw_program_run", c_int32, number, Array, size, c_void_p, c_uint32, c_uint32, size, size
            )
        except (OSError, AttributeError):
            raise SwitchError(
                "this build of Sumwire has no in-network aggregator: reinstall it on Linux with a C compiler and the "
                "kernel's headers (Debian: linux-libc-dev)"
            ) from None


_library: _Library | None = None


def library() -> _Library:
    """The native functions; raises `SwitchError` where the library was built without them."""
    global _library
    if _library is None:
        _library = _Library()
    return _library


def _checked(what: str, done: int) -> int:
    if done < 0:
        raise privileges.failure(what, -done)
    return done


@dataclass(frozen=True)
class Ran:
    """What a program made of one packet."""

    verdict: int
    packet: bytes
    nanoseconds: int


class Descriptors:
    """Descriptors by name, closed together. What is attached stays attached as long as they are open."""

    def __init__(self, fds: dict[str, int]) -> None:
        self._fds = fds
        self._links: list[int] = []

    def __getitem__(self, name: str) -> int:
        return self._fds[name]

    def read(self, name: str, key: int, value: NDArray[Any]) -> NDArray[Any]:
        """An element of a map, into `value`."""
        _checked(f"read {name}[{key}] of the aggregator", library().lookup(self._fds[name], key, value))
        return value

    def write(self, name: str, key: int, value: NDArray[Any]) -> None:
        """An element of a map."""
        _checked(f"write {name}[{key}] of the aggregator", library().update(self._fds[name], key, value))

    def attach_tc(self, name: str, ifindex: int, *, outward: bool = False) -> None:
        """To a device of this thread's network namespace, before whatever is there."""
        done = library().attach_tc(self._fds[name], ifindex, outward)
        self._links.append(_checked(f"attach to device {ifindex} by tcx", done))

    def attach_xdp(self, name: str, ifindex: int, *, generic: bool) -> None:
        done = library().attach_xdp(self._fds[name], ifindex, generic)
        what = f"attach to device {ifindex} by generic XDP"
        if not generic:
            what = f"attach to device {ifindex} by native XDP, which needs a driver with XDP and an MTU of one page"
        self._links.append(_checked(what, done))

    def run(self, name: str, packet: bytes, *, repeat: int = 1) -> Ran:
        """Run a program on a packet, without any network."""
        data = np.frombuffer(packet, np.uint8)
        out = ctypes.create_string_buffer(1 << 14)
        size, verdict, nanoseconds = c_uint32(len(packet)), c_uint32(), c_uint32()
        done = library().run(self._fds[name], data, size, ctypes.addressof(out), len(out), repeat, verdict, nanoseconds)
        _checked("run a program", done)
        return Ran(c_int32(verdict.value).value, out.raw[: size.value], nanoseconds.value)

    def close(self) -> None:
        """Detach and forget everything."""
        fds, self._fds, links, self._links = self._fds, {}, self._links, []
        for fd in (*links, *fds.values()):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_aggregator(mode: str, *, jobs: int, slots: int, ports: int) -> Descriptors:
    """The aggregator's programs and maps."""
    privileges.check()
    fds = _SwitchFds()
    _checked("load the aggregator", library().load(MODES.index(mode), jobs, slots, ports, fds))
    return _named(fds, fds.names)


def load_impairment() -> Descriptors:
    """The programs that make a link bad."""
    privileges.check()
    fds = _ImpairFds()
    _checked("load the programs of a bad link", library().load_impair(fds))
    return _named(fds, fds.names)


def _named(fds: ctypes.Structure, names: Iterable[str]) -> Descriptors:
    return Descriptors({name: getattr(fds, name) for name in names})
