"""Compile every GPU kernel ahead of time, as it is launched, for GPUs that need not be here; nothing is run.

python -m benchmarks.gpu_compile                                   # everything, about 20 minutes
python -m benchmarks.gpu_compile --quick                           # what CI compiles
python -m benchmarks.gpu_compile --large                           # blocks beyond 2048
python -m benchmarks.gpu_compile --out docs/gpu-compile.md         # the committed table

Fails if a kernel spills registers, or has floating-point instructions that would change bits.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from benchmarks.gpu_calls import Case, cases, large_cases

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

INEXACT = re.compile(r"fma\.rn\.f|\.ftz|\.approx|div\.full|rsqrt|ex2|lg2")
"""What PTX must not have: contraction, flushed denormals, approximations."""

RELAXED = re.compile(r"\bf(?:add|sub|mul|div) (?:fast|contract|afn|reassoc|arcp)|llvm\.fmuladd")
"""What LLVM's code must not have, where the assembler expands exact divisions into FMAs."""

_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64", torch.uint8: "u8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A kernel with the types, constants and options of one launch."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[int, ...]
    """Arguments that are addresses divisible by 16."""
    options: dict[str, Any]

    @property
    def label(self) -> str:
        kinds = [kind[1:] for name, kind in self.signature.items() if name in ("x", "lanes", "data", "words")][:1]
        chosen = [f"{name.lower()}={value}" for name, value in self.constants.items() if name not in ("LOG", "EACH")]
        wide = ["64-bit scratch"] * (self.signature.get("scratch") == "*i64" and "WIDE" not in self.constants)
        return ", ".join(kinds + chosen + wide)


@dataclass(frozen=True)
class Compiled:
    """What a target's compiler made of a launch."""

    registers: int
    shared: int
    spilled: int
    """Bytes of stack or scratch memory per thread."""
    inexact: tuple[str, ...]


def launches(call: Callable[[], object]) -> list[Launch]:
    """The launches that a call makes, none of which is run."""
    found: list[Launch] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        names = kernel.arg_names
        constants = {name: kwargs[name] for name in names if name in kwargs}
        signature = {name: _type(arg) for name, arg in zip(names, args, strict=False)}
        aligned = tuple(i for i, arg in enumerate(args) if hasattr(arg, "data_ptr") and arg.data_ptr() % 16 == 0)
        options = {name: value for name, value in kwargs.items() if name not in names}
        found.append(Launch(kernel, signature | dict.fromkeys(constants, "constexpr"), constants, aligned, options))

    with patch.object(JITFunction, "run", record):
        call()
    return found


def _type(arg: Any) -> str:
    return f"*{_TYPES[arg.dtype]}" if hasattr(arg, "data_ptr") else "i32"


def compiled(launch: Launch, target: GPUTarget) -> Compiled:
    """Compile for a GPU that need not be here."""
    attrs = {(i,): [["tt.divisibility", 16]] for i in launch.aligned}
    source = ASTSource(launch.kernel, launch.signature, launch.constants, attrs)
    made = triton.compile(source, target=target, options=launch.options)
    shared = int(made.metadata.shared)
    if target.backend == "hip":
        figures = {
            name: int(value)
            for name, value in re.findall(
                r"\.(vgpr_count|vgpr_spill_count|private_segment_fixed_size):\s+(\d+)", made.asm["amdgcn"]
            )
        }
        spilled = figures["private_segment_fixed_size"] + figures["vgpr_spill_count"]
        return Compiled(figures["vgpr_count"], shared, spilled, tuple(RELAXED.findall(made.asm["llir"])))
    usage = _resource_usage(made.asm["cubin"])
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    return Compiled(int(found[1]), shared, int(found[2]), tuple(sorted(set(INEXACT.findall(made.asm["ptx"])))))


def _resource_usage(cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return run.stdout


def distinct(chosen: list[Case]) -> Iterator[Launch]:
    """Launches of these cases, each kind once."""
    seen = set()
    for case in chosen:
        for launch in launches(case.call):
            key = launch.kernel.__name__, launch.label
            if key not in seen:
                seen.add(key)
                yield launch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="blocks of 512 and float32 only, for sm_90 and gfx942")
    parser.add_argument("--large", action="store_true", help="blocks beyond 2048 only: the last rows of the table")
    parser.add_argument("--targets", default=None, help=f"of {','.join(TARGETS)}, separated by commas")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    args = parser.parse_args()
    names = (args.targets or ("sm_90,gfx942" if args.quick else ",".join(TARGETS))).split(",")
    if unknown := set(names) - set(TARGETS):
        parser.error(f"targets {', '.join(sorted(unknown))} are not among {', '.join(TARGETS)}")
    if not isinstance(triton.jit(main), JITFunction):
        parser.error("TRITON_INTERPRET is set, so that nothing would be compiled: unset it")
    begin, failed, rows = time.perf_counter(), 0, []
    for launch in distinct(large_cases() if args.large else cases(quick=args.quick)):
        cells = []
        for name in names:
            made = compiled(launch, TARGETS[name])
            failed += bool(made.spilled or made.inexact)
            trouble = f", spills {made.spilled} B" * bool(made.spilled) + ", ".join(("", *made.inexact))
            cells.append(f"{made.registers} / {made.shared}{trouble}")
        rows.append(f"| `{launch.kernel.__name__}` | {launch.label} | {launch.options['num_warps']} | ")
        rows[-1] += " | ".join(cells) + " |"
        print(rows[-1], flush=True)
    if args.out:
        args.out.write_text(_page(names, rows))
    print(f"{len(rows)} kernels for {len(names)} targets in {time.perf_counter() - begin:.0f} s, {failed} failed")
    return bool(failed)


def _page(names: list[str], rows: list[str]) -> str:
    return "\n".join(
        [
            "# GPU kernels, compiled ahead of time",
            "",
            "Registers per thread / bytes of shared memory. None spills, none has an inexact instruction.",
            f"Made with Triton {triton.__version__}; nothing was run on a GPU. [gpu.md](gpu.md) explains the kernels.",
            "",
            "```sh",
            "python -m benchmarks.gpu_compile --out docs/gpu-compile.md",
            "```",
            "",
            f"| kernel | configuration | warps | {' | '.join(names)} |",
            "|---|---|---|" + "---|" * len(names),
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
