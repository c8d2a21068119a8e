"""What is compiled into the library is what stands in bpf/."""

from __future__ import annotations

import hashlib
from pathlib import Path

BPF = Path(__file__).parents[3] / "bpf"


def test_skeletons_were_made_of_these_sources():
    sources = [*sorted(BPF.glob("*.c")), *sorted(BPF.glob("*.h"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    assert (BPF / "skeleton" / "sources.sha256").read_text().strip() == digest, (
        "run `make bpf`, and commit bpf/skeleton"
    )


def test_every_program_has_a_skeleton():
    programs = {path.name.removesuffix(".bpf.c") for path in BPF.glob("*.bpf.c")}
    assert {path.name.removesuffix(".lskel.h") for path in (BPF / "skeleton").glob("*.h")} == programs
