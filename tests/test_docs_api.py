"""The public names: what `import sumwire` brings, and docs/api.md, which is written from the code."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import sumwire

ROOT = Path(__file__).parents[1]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for needed in ("torch", "sklearn"):
        pytest.importorskip(needed)
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate_api

    return generate_api


def test_the_page_is_what_the_code_says(api: ModuleType) -> None:
    assert api.PAGE.read_text() == api.page(), "out of date, or changed by hand: run python docs/generate_api.py"


def test_the_page_has_every_public_name(api: ModuleType) -> None:
    from sumwire import dme, estimators, train

    shown = set(re.findall(r"^### sumwire\.(\S+)|^\| `sumwire\.errors\.(\w+)`", api.PAGE.read_text(), flags=re.M))
    names = {first or second for first, second in shown}
    public = {name for name in sumwire.__all__ if not inspect.ismodule(getattr(sumwire, name))}
    for module in (dme, estimators, train):
        public |= {f"{module.__name__.removeprefix('sumwire.')}.{name}" for name in module.__all__}
    assert public - names == set()


def test_every_public_name_is_there() -> None:
    assert dir(sumwire) == sorted(dir(sumwire))
    assert {name for name in dir(sumwire) if not name.startswith("_")} == set(sumwire.__all__)
    lazy = {"Group": "torch", "train": "torch", "estimators": "sklearn"}
    for name in sumwire.__all__:
        if name in lazy:
            pytest.importorskip(lazy[name])
        assert getattr(sumwire, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Collective'"):
        sumwire.Collective  # noqa: B018


def test_importing_brings_no_torch_and_no_sockets() -> None:
    heavy = ("torch", "sklearn", "asyncio", "ssl", "multiprocessing", "click", "rich")
    code = f"import sys, sumwire; dir(sumwire); print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_options_of_attach_are_those_of_the_code() -> None:
    """Names and defaults; a default that is None stands for a rule, which the text gives."""
    pytest.importorskip("torch")
    from sumwire.train.fsdp import FSDPOptions
    from sumwire.train.options import BITS, ENERGY, FEEDBACK, DDPOptions, Settings

    page = (ROOT / "docs" / "training.md").read_text().partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|", page, flags=re.M)
    table = {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(table) == {"bits", *DDPOptions.__annotations__}
    assert {name for name, row in table.items() if row[1] != "-"} == {"bits", *FSDPOptions.__annotations__}
    assert {name for name, row in table.items() if row[1] not in ("-", row[0])} == {"warmup"}
    assert table["warmup"][1] == "0"
    defaults = {each.name: each.default for each in fields(Settings)}
    defaults |= {"bits": BITS, "energy": ENERGY, "feedback": FEEDBACK, "codec": "lattice"}
    for name, (default, _) in table.items():
        if defaults[name] is not None and name != "token":
            assert ast.literal_eval(default.strip("`").replace("2^23", str(1 << 23))) == defaults[name], name
