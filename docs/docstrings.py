"""Docstrings to Markdown: numpydoc's sections, aligned lists of options, doctests."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

HEADINGS = ("Parameters", "Attributes", "Returns", "Raises", "Examples")


def summary(each: Any) -> str:
    """The first paragraph, on one line."""
    return " ".join((inspect.getdoc(each) or "").partition("\n\n")[0].split()).replace("|", "\\|")


def body(text: str, types: dict[str, str] | None = None) -> str:
    """A docstring as Markdown."""
    parts: list[str] = []
    for heading, block in sections(text):
        if heading == "Examples":
            parts.append(example(block))
        elif heading:
            parts += [f"**{heading}**\n", definitions(block)]
        else:
            parts += [paragraph(each, types or {}) for each in re.split(r"\n\n+", block.strip("\n")) if each]
    return "\n".join(parts)


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The headings that numpydoc underlines, and what stands under each; what comes first has none."""
    pieces = re.split(rf"^({'|'.join(HEADINGS)})\n-+\n", text, flags=re.M)
    yield "", pieces[0]
    yield from zip(pieces[1::2], pieces[2::2], strict=True)


def paragraph(text: str, types: dict[str, str]) -> str:
    if text.startswith(">>>"):
        return example(text)
    rows = list(aligned(text))
    if rows:
        head = ["option", "type", "meaning"] if types else ["option", "meaning"]
        lines = [head, ["---"] * len(head)]
        for name, meaning in rows:
            kinds = {types[each]: None for each in name.split(", ")} if types else {}
            named = ", ".join(f"`{each}`" for each in name.split(", "))
            typed = [", ".join(f"`{escape(kind)}`" for kind in kinds)] if types else []
            lines.append([named, *typed, escape(meaning)])
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)
    if text.startswith(" "):
        return f"```\n{textwrap.dedent(text)}\n```\n"
    return f"{text}\n"


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def aligned(text: str) -> Iterator[tuple[str, str]]:
    """The rows of a list whose second column is aligned; none if the text is prose."""
    first = re.match(r"\w+(?:, \w+)* {2,}", text)
    if first is None:
        return
    column, name, words = first.end(), "", []
    for line in text.splitlines():
        if line.startswith(" "):
            words.append(line.strip())
            continue
        if name:
            yield name, " ".join(words)
        name = re.match(r"\w+(?:, \w+)*", line)[0]  # type: ignore[index]
        assert len(name) >= column or not line[len(name) : column].strip(), f"not aligned: {line}"
        words = [line[len(name) :].strip()]
    yield name, " ".join(words)


def definitions(text: str) -> str:
    """What stands under "Parameters": names, and indented below each what it is."""
    lines = []
    for name, meaning in re.findall(r"^(\S.*)\n((?:[ ]+.*\n?|\n)*)", text, flags=re.M):
        title, _, kind = name.partition(" : ")
        lines.append(f"- `{title}`{f' ({kind})' if kind else ''}: {' '.join(meaning.split())}")
    return "".join(textwrap.fill(line, 118, subsequent_indent="  ", break_long_words=False) + "\n" for line in lines)


def example(text: str) -> str:
    """Doctests, as Python shows them; prose between them as it is."""
    parts = []
    for block in re.split(r"\n\n+", text.strip()):
        shown = re.sub(r" *# doctest: \+SKIP", "", block)
        parts.append(f"```pycon\n{shown}\n```\n" if shown.startswith(">>>") else f"{shown}\n")
    return "\n".join(parts)
