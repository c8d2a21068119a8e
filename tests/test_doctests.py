"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import sumwire

MODULES = ["sumwire"] + [
    module.name
    for module in pkgutil.walk_packages(sumwire.__path__, "sumwire.")
    if not module.name.endswith(("__main__", "libsumwire"))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except OSError:
        pytest.skip("built without a compiler")
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
    assert doctest.testmod(module).failed == 0
