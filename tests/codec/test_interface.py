"""What every codec promises to aggregators, which know it by the methods of `Codec` only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise
from operator import or_
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire import InputError, RoundError, Sketch, Sparse
from sumwire.codec.algebra import Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.parts import PackedLatticeSum
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices
from sumwire.codec.sparse import Compact
from sumwire.codec.stacked import Stacked
from tests.codec.sketch.samples import random_sparse, sparse
from tests.strategies import codecs, gradients


@dataclass(frozen=True)
class Case:
    """A codec, a tensor per worker, and how many owners add."""

    codec: Codec
    xs: list[Any]
    owners: int
    round_id: int

    def proposals(self) -> list[Terms]:
        return [self.codec.propose(x) for x in self.xs]

    def payloads(self) -> list[Payload]:
        terms = reduce(or_, self.proposals())
        return [self.codec.encode(x, terms, rank=rank, round_id=self.round_id) for rank, x in enumerate(self.xs)]


@st.composite
def cases(draw: st.DrawFn, xs: st.SearchStrategy[list[Any]], make: Callable[[st.DrawFn, int], Codec]) -> Case:
    tensors = draw(xs)
    owners = draw(st.integers(1, 16))
    codec = make(draw, len(tensors) + draw(st.integers(0, 2)))
    codec = codec.for_owners(owners) if draw(st.booleans()) else codec
    return Case(codec, tensors, owners, draw(st.integers(0, 2**40)))


@st.composite
def slices(draw: st.DrawFn) -> list[RowSlices]:
    """Some rows of a table for each worker."""
    table, width = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [
        RowSlices((table, width), numbers, rng.standard_normal((len(numbers), width)).astype(dtype))
        for numbers in (np.flatnonzero(rng.random(table) < rng.random()) for _ in range(draw(st.integers(1, 4))))
    ]


@st.composite
def stacks(draw: st.DrawFn) -> Case:
    """As many owners as rows, as in a reduce-scatter."""
    xs = draw(gradients(max_workers=4))
    rows = draw(st.integers(1, 4))
    inner = draw(st.one_of(codecs(workers=len(xs)), st.just(Sparse(len(xs)))))
    return Case(Stacked(inner, rows=rows), [np.stack([x] * rows) for x in xs], rows, draw(st.integers(0, 2**40)))


def _sparse(draw: st.DrawFn, workers: int) -> Sparse:
    return Sparse(workers, shards=draw(st.integers(0, 7)), block=draw(st.sampled_from([None, 64])))


def _sketch(draw: st.DrawFn, workers: int) -> Sketch:
    return Sketch(workers, rows_per_nonzero=draw(st.sampled_from([0.5, 1.3, 3.0])), seed=draw(st.integers(0, 99)))


@st.composite
def overlapping(draw: st.DrawFn) -> list[Any]:
    """Tensors large enough for tables, all with the same support: every bit of the index is set by all workers."""
    size, count = draw(st.sampled_from([3000, 20_000])), draw(st.integers(1, 200))
    return random_sparse(size, count, draw(st.integers(0, 2**32 - 1))) * draw(st.integers(1, 4))


LATTICES = cases(gradients(max_workers=4), lambda draw, n: draw(codecs(workers=n)))
COMPACTS = cases(gradients(max_workers=4), lambda draw, n: Compact(n))
KINDS = {
    "lattice": LATTICES,
    "sparse": cases(sparse(max_workers=4), _sparse),
    "sketch": cases(sparse(max_workers=4) | overlapping(), _sketch),
    "compact": COMPACTS,
    "rows": cases(slices(), lambda draw, n: Rows(n, shards=draw(st.integers(0, 7)))),
    "stacked": stacks(),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
# A codec with options of its own solves its tables first, which takes longer than the rest of an example.
few = settings(max_examples=settings.default.max_examples * 2 // 5)


def meaning(codec: Codec, total: Sum | Payload, **options: Any) -> bytes | str:
    """The bits of the mean; of a sketch that needs a second exchange, what it says."""
    try:
        mean: Any = codec.decode(total, **options)
    except RoundError as error:
        return str(error)
    return mean.numbers.tobytes() + mean.values.tobytes() if isinstance(mean, RowSlices) else mean.tobytes()


def pieces(data: Any, sizes: tuple[int, ...]) -> list[Any]:
    assert sum(sizes) == len(data)
    return np.split(data, np.cumsum(sizes)[:-1])


def by_owners(codec: Codec, payloads: list[Payload], owners: int) -> Sum:
    """Cut payloads, let every owner read and add its units, pack the sums, and read them as one."""
    terms, round_id = payloads[0].terms, payloads[0].round_id
    edges = codec.edges(terms, owners)
    assert len(edges) == owners + 1
    assert edges[0] == 0
    assert list(edges) == sorted(edges)
    expected, of_sums = codec.payload_sizes(terms, edges), codec.sum_sizes(terms, edges)
    sent = []
    for payload in payloads:
        data, sizes = payload.cut(edges)
        assert expected is None or tuple(sizes) == tuple(expected)
        sent.append(pieces(data, sizes))
    packed = []
    for owner, (lo, hi) in enumerate(pairwise(edges)):
        read = [
            codec.read_payload(
                terms, theirs[owner], rank=payload.rank, round_id=round_id, lo=lo, hi=hi, kind=payload.value_kind
            )
            for payload, theirs in zip(payloads, sent, strict=True)
        ]
        data = codec.add(read).narrow().packed()
        assert of_sums is None or len(data) == of_sums[owner]
        packed.append(((lo, hi), data))
    return codec.read_sum(terms, packed, count=len(payloads), round_id=round_id)


@every_kind
@few
@given(data=st.data())
def test_owners_of_shards_find_the_sum_that_adding_whole_payloads_gives(kind: str, data: st.DataObject) -> None:
    case = data.draw(KINDS[kind])
    codec, payloads = case.codec, case.payloads()
    total = by_owners(codec, payloads, case.owners)
    assert total.count == len(payloads)
    divide_by = data.draw(st.sampled_from(["count", "workers"]))
    whole = codec.add(payloads).narrow()
    assert meaning(codec, total, divide_by=divide_by) == meaning(codec, whole, divide_by=divide_by)


@every_kind
@few
@given(data=st.data())
def test_terms_join_word_by_word(kind: str, data: st.DataObject) -> None:
    """So that a transport that can only take maxima or OR joins terms."""
    proposals = data.draw(KINDS[kind]).proposals()
    first = proposals[0]
    assert first.words.dtype in (np.int32, np.int64)
    join = np.maximum if first.joined_by == "max" else np.bitwise_or
    joined = first.with_words(reduce(join, [terms.words for terms in proposals]))
    assert joined == reduce(or_, proposals)
    bases = joined.bases
    if bases is None:
        assert joined.nbytes == joined.words.nbytes
    else:
        assert joined.nbytes == 2 * len(bases) + len(joined.codes(bases))
        assert joined.with_codes(bases, joined.codes(bases)) == joined


@few
@given(case=LATTICES, rows=st.integers(1, 3), data=st.data())
def test_a_refusal_absorbs_whatever_it_is_joined_with(case: Case, rows: int, data: st.DataObject) -> None:
    codec: Codec = case.codec
    terms = case.proposals()[0]
    if data.draw(st.booleans()):
        codec = Stacked(codec, rows=rows)
        terms = codec.propose(np.stack([case.xs[0]] * rows))
    refusal = codec.refuse(terms.shape)
    for joined in (terms | refusal, refusal | terms, refusal | refusal, terms | refusal | terms):
        assert joined.encodable == (refusal.size == 0)
    assert terms.encodable
    assert terms.with_words(np.maximum(terms.words, refusal.words)).encodable == (refusal.size == 0)


@pytest.mark.parametrize("codec", [Sparse(2), Sketch(2), Compact(2), Rows(2)])
def test_codecs_that_encode_anything_have_nothing_to_refuse(codec: Codec) -> None:
    with pytest.raises(InputError, match="nothing to refuse"):
        codec.refuse((3,))


@pytest.mark.parametrize("kind", ["lattice", "compact"])
@few
@given(data=st.data())
def test_summands_add_to_the_same_sum(kind: str, data: st.DataObject) -> None:
    """In a plain SUM of int32 or float32 numbers."""
    case = data.draw(KINDS[kind])
    codec, payloads = case.codec, case.payloads()
    summands = [payload.summands() for payload in payloads]
    partial = list(accumulate(each.astype(np.int64) if kind == "lattice" else each for each in summands))
    assert kind != "lattice" or all((np.abs(total) < 2**31).all() for total in partial)
    values = partial[-1].astype(summands[0].dtype)
    read = codec.read_summands(payloads[0].terms, values, count=len(payloads), round_id=case.round_id)
    assert read.count == len(payloads)
    assert meaning(codec, read) == meaning(codec, codec.add(payloads))


@pytest.mark.parametrize("codec", [Sketch(2), Rows(2), Stacked(Sparse(2), rows=1)])
def test_codecs_without_summands_say_so(codec: Codec) -> None:
    with pytest.raises(InputError, match="no form that a plain SUM adds"):
        codec.read_summands(None, np.zeros(3), count=2, round_id=0)  # type: ignore[arg-type]
    assert isinstance(Sparse(2).for_plain_sums(), Compact)


@few
@given(case=LATTICES)
def test_a_packed_sum_of_a_lattice_still_adds(case: Case) -> None:
    codec = replace(case.codec, down_bits="exact")
    payloads = replace(case, codec=codec).payloads()
    packed = by_owners(codec, payloads, case.owners)
    assert isinstance(packed, PackedLatticeSum)
    unpacked = codec.add(payloads)
    assert packed.packed().tobytes() == unpacked.packed().tobytes()
    for part in (packed.part(0, len(packed.lattice_terms.sizes)), packed.unpacked()):
        assert meaning(codec, part) == meaning(codec, unpacked)
    if len(payloads) < codec.headroom:
        total = packed + payloads[0]
        assert total.count == len(payloads) + 1
        assert meaning(codec, total) == meaning(codec, unpacked + payloads[0])


@pytest.mark.parametrize("kind", ["lattice", "sparse", "rows"])
@few
@given(data=st.data())
def test_parts_of_a_sum_lie_side_by_side(kind: str, data: st.DataObject) -> None:
    case = data.draw(KINDS[kind])
    total = case.codec.add(case.payloads())
    runs = pairwise(case.codec.edges(total.terms, case.owners))
    again = case.codec.side_by_side([total.part(lo, hi) for lo, hi in runs])
    assert meaning(case.codec, again) == meaning(case.codec, total)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rows"])
@few
@given(data=st.data())
def test_encode_and_decode_use_the_memory_that_is_lent(kind: str, data: st.DataObject) -> None:
    case = data.draw(KINDS[kind])
    codec, (payload, *_) = case.codec, case.payloads()
    room = np.full(codec.payload_room(payload.terms, 4), 0xA5, np.uint8)
    lent = codec.encode(case.xs[0], payload.terms, rank=0, round_id=case.round_id, out=room)
    edges = codec.edges(payload.terms, 1)
    assert lent.cut(edges)[0].tobytes() == payload.cut(edges)[0].tobytes()
    out = np.full(payload.terms.size, 7, np.float32)
    assert meaning(codec, lent, out=out) == meaning(codec, payload)


@every_kind
@few
@given(data=st.data())
def test_a_part_of_a_part_is_that_part(kind: str, data: st.DataObject) -> None:
    """Of payloads, of what is read from their bytes, and of sums; in the bytes that travel on."""
    case = data.draw(KINDS[kind])
    codec, payloads = case.codec, case.payloads()
    terms, total = payloads[0].terms, codec.add(payloads)
    edges = codec.edges(terms, case.owners)
    a, b, c, d = sorted(data.draw(st.sampled_from(edges)) for _ in range(4))
    expected = codec.add([payload.part(b, c) for payload in payloads]).packed().tobytes()
    assert codec.add([payload.part(a, d).part(b, c) for payload in payloads]).packed().tobytes() == expected
    assert total.part(b, c).packed().tobytes() == total.part(a, d).part(b, c).packed().tobytes() == expected
