"""The GPU kernels on a CPU, by Triton's interpreter; what is skipped without Triton is skipped with the reason."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

# Before any kernel is imported: `triton.jit` looks at it once.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

settings.register_profile(
    "interpreter", max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent.name == "gpu"]
    reason = None
    if importlib.util.find_spec("triton") is None:
        reason = 'Triton is not installed: pip install ".[gpu]"'
    elif not INTERPRETED:
        reason = "a step of its own: make test-gpu-kernels sets TRITON_INTERPRET=1"
    for item in here:
        if reason is not None and "compiler" not in item.fixturenames:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.skip(reason=reason))
