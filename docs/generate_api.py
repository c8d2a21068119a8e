"""Write docs/api.md from the signatures and docstrings of the code.

    python docs/generate_api.py

tests/test_docs_api.py compares the page with the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

from docstrings import body, summary

import sumwire
from sumwire import dme, errors, estimators, train
from sumwire.lab.plan import Plan, plan
from sumwire.train.diloco import DiLoCoOptions
from sumwire.train.fsdp import FSDPOptions, FSDPState
from sumwire.train.options import CodecOptions, DDPOptions
from sumwire.train.process_group import SumwireGroup

PAGE = Path(__file__).parent / "api.md"

OPENING = """\
# API

Every public name, for those who look one up: signature, law, options. The other pages explain; this one is written
from the docstrings by `python docs/generate_api.py`, so change those instead.

```python
import sumwire

help(sumwire.Lattice)  # the same text, in Python
```

`import sumwire` needs NumPy alone. What needs torch, scikit-learn or asyncio is imported when it is first named.
"""

CODECS = ["Codec", "Terms", "Payload", "Sum", "Lattice", "Residual", "Sparse", "Rows", "Sketch"]
AGGREGATORS = ["average", "Aggregator", "Local", "Group", "connect", "Link", "AsyncLink", "Server"]

SECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Codecs": (
        "Tensor to payload, sum to tensor: [lattice.md](lattice.md) and [sparse.md](sparse.md).",
        {f"sumwire.{name}": getattr(sumwire, name) for name in CODECS},
    ),
    "Aggregators": (
        "Where terms are joined and payloads added: [aggregators.md](aggregators.md) and [server.md](server.md).",
        {f"sumwire.{name}": getattr(sumwire, name) for name in AGGREGATORS},
    ),
    "Training": (
        "For DDP and FSDP2: [training.md](training.md); across sites: [sites.md](sites.md).",
        {f"sumwire.train.{name}": getattr(train, name) for name in ("attach", "DDPState", "hook", "DiLoCo")}
        | {f"sumwire.train.{name}": getattr(train, name) for name in ("register_backend", "GroupOptions")}
        | {"sumwire.train.process_group.SumwireGroup": SumwireGroup}
        | {"sumwire.train.fsdp.FSDPState": FSDPState}
        | {f"sumwire.train.options.{each.__name__}": each for each in (CodecOptions, DDPOptions)}
        | {"sumwire.train.fsdp.FSDPOptions": FSDPOptions, "sumwire.train.diloco.DiLoCoOptions": DiLoCoOptions},
    ),
    "Mean estimation": (
        "One message per client, nothing added: [dme.md](dme.md).",
        {f"sumwire.dme.{name}": getattr(dme, name) for name in ("estimate", "MeanScheme")}
        | {f"sumwire.dme.{name}": getattr(dme, name) for name in dme.__all__},
    ),
    "Estimators": (
        "k-means and PCA over partitions: [estimators.md](estimators.md).",
        {f"sumwire.estimators.{name}": getattr(estimators, name) for name in estimators.__all__},
    ),
    "Planning": (
        "What a training step would take: [plan.md](plan.md).",
        {f"sumwire.lab.plan.{each.__name__}": each for each in (plan, Plan)},
    ),
    "Threads": (
        "How many threads kernels use.",
        {f"sumwire.{name}": getattr(sumwire, name) for name in ("set_num_threads", "get_num_threads")},
    ),
    "Errors": (
        "Each is also an attribute of `sumwire`.",
        {
            f"sumwire.errors.{name}": each
            for name, each in vars(errors).items()
            if inspect.isclass(each) and issubclass(each, Exception)
        },
    ),
}

DOCUMENTED = {each for _, names in SECTIONS.values() for each in names.values() if inspect.isclass(each)}
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
BUILT_BY = {sumwire.Local: "create"}
"""Classes that users build by a class method."""


def page() -> str:
    """The whole of docs/api.md."""
    parts = [OPENING]
    for title, (purpose, names) in SECTIONS.items():
        parts += [f"## {title}\n", f"{purpose}\n"]
        parts += [errors_table(names)] if title == "Errors" else [entry(name, each) for name, each in names.items()]
    return "\n".join(parts)


def entry(name: str, each: Any) -> str:
    """Signature, docstring and members of one name."""
    parts = [f"### {name}\n"]
    if not is_options(each):
        # Not "python": the tests would run it.
        parts.append(f"```\n{signature(name.rpartition('.')[2], each)}\n```\n")
    parts.append(body(inspect.getdoc(each) or "", options_of(each)))
    if inspect.isclass(each) and not is_options(each):
        parts += list(members(each))
    return "\n".join(parts)


def errors_table(names: dict[str, Any]) -> str:
    rows = ["| error | is a | meaning |", "|---|---|---|"]
    for name, each in names.items():
        bases = ", ".join(f"`{base.__name__}`" for base in each.__bases__)
        rows.append(f"| `{name}` | {bases} | {summary(each)} |")
    return "\n".join(rows) + "\n"


# Signatures


def is_options(each: Any) -> bool:
    """Whether this is a TypedDict: its keys are keyword arguments of something else."""
    return isinstance(each, type) and issubclass(each, dict)


def signature(name: str, each: Callable[..., Any]) -> str:
    """As one would write it, on one line or with a line for each parameter."""
    if inspect.isabstract(each):
        return f"class {name}(ABC)"
    if each in BUILT_BY:
        return signature(f"{name}.{BUILT_BY[each]}", getattr(each, BUILT_BY[each]))
    found = inspect.signature(each)
    parameters = [parameter for parameter in found.parameters.values() if parameter.name not in ("self", "cls")]
    written, kinds = [], [parameter.kind for parameter in parameters]
    for k, parameter in enumerate(parameters):
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        if keyword and parameter.VAR_POSITIONAL not in kinds and kinds.index(parameter.KEYWORD_ONLY) == k:
            written.append("*")
        written.append(one(parameter))
    returns = "" if inspect.isclass(each) or found.return_annotation is found.empty else found.return_annotation
    arrow = f" -> {annotation(returns)}" if returns != "" else ""
    line = f"{name}({', '.join(written)}){arrow}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in written) + f"){arrow}"


def one(parameter: inspect.Parameter) -> str:
    stars = STARS.get(parameter.kind, "")
    text = stars + parameter.name
    typed = parameter.annotation is not parameter.empty
    if typed:
        text += f": {annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        value = parameter.default
        shown = value.name if isinstance(value, Enum) else repr(value)
        text += f" = {shown}" if typed else f"={shown}"
    return text


def annotation(value: Any) -> str:
    """Without the modules that names come from."""
    if get_origin(value) is Unpack:
        return f"Unpack[{annotation(get_args(value)[0])}]"
    value = getattr(value, "__forward_arg__", value)
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return re.sub(r"\b(?:[a-z_][\w]*\.)+(?=[A-Za-z])", "", text)


def options_of(each: Any) -> dict[str, str]:
    """Types of a TypedDict's own keys, for the table of its docstring."""
    return {name: annotation(kind) for name, kind in vars(each)["__annotations__"].items()} if is_options(each) else {}


# Members


def members(each: type) -> Iterator[str]:
    """A table of what the class adds to the one above it on this page; methods with parameters in full."""
    above = next((base for base in each.__mro__[1:] if base in DOCUMENTED), None)
    found: dict[str, tuple[str, str]] = {}
    for base in each.__mro__:
        if base is above:
            break
        if base.__module__.startswith("sumwire"):
            for name, meaning in attributes(base).items():
                found.setdefault(name, (name, meaning))
            for name, value in vars(base).items():
                if not name.startswith("_") and inspect.getdoc(value) and not hasattr(above, name):
                    found.setdefault(name, (call(name, value), summary(value)))
    found = {name: row for name, row in found.items() if row[0]}
    if above is not None:
        yield f"It has what `{above.__name__}` has{', and:' if found else '.'}\n"
    if found:
        rows = "".join(f"| `{shown}` | {meaning} |\n" for shown, meaning in found.values())
        yield f"| member | what it is |\n| --- | --- |\n{rows}"
    for name in found:
        text = inspect.getdoc(vars(each).get(name)) or ""
        if "\nParameters\n---" in text:
            yield f"#### {each.__name__}.{name}\n\n```\n{signature(name, getattr(each, name))}\n```\n\n{body(text)}"


def call(name: str, value: Any) -> str:
    """A member in a table: methods with the names of their parameters; nothing for what has no docstring of its own."""
    method = inspect.unwrap(getattr(value, "__func__", value))
    if isinstance(value, property | cached_property):
        return name
    if not inspect.isfunction(method):
        return ""
    parameters = list(inspect.signature(method).parameters.values())
    return f"{name}({', '.join(short(each) for each in parameters[not isinstance(value, staticmethod) :])})"


def short(parameter: inspect.Parameter) -> str:
    """A parameter in a table: optional ones with an equals sign."""
    stars = STARS.get(parameter.kind, "")
    return f"{stars}{parameter.name}{'' if parameter.default is parameter.empty else '='}"


def attributes(each: type) -> dict[str, str]:
    """Attributes that have a string below them, which no object remembers."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    starts = [node.body for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    found = {}
    for block in [tree.body, *starts]:
        for before, after in pairwise(block):
            if not isinstance(after, ast.Expr) or not isinstance(after.value, ast.Constant):
                continue
            target = before.target if isinstance(before, ast.AnnAssign) else getattr(before, "targets", [None])[0]
            name = getattr(target, "id", getattr(target, "attr", "_"))
            if not name.startswith("_"):
                found[name] = " ".join(str(after.value.value).split()).replace("|", "\\|")
    return found


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE} written")
