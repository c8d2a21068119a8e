"""Instruction sets, one after another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

try:
    from sumwire.kernels import native as library
except OSError:  # built without a compiler: modules that need it skip themselves
    LEVELS: tuple[str, ...] = ()
else:
    LEVELS = tuple(library.LEVELS)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this CPU has."""
    best = library.level()
    if library.set_level(request.param) != request.param:
        library.set_level(best)
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    library.set_level(best)
