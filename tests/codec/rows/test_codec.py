"""The Rows codec: the bits of the dense sum, whatever the order of adding."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import InputError, MismatchError, average
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices
from tests.wire.rows_samples import bits_of, dense, table


@given(
    shape=st.tuples(st.integers(1, 60), st.integers(0, 4)),
    workers=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_sums_have_the_bits_of_the_dense_one_in_rank_order(shape, workers, share, dtype):
    xs = [table(*shape, seed, dtype, share) for seed in range(workers)]
    codec = Rows(workers)
    terms = codec.propose(xs[0])
    payloads = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    wanted = dense(xs[0])
    for x in xs[1:]:
        wanted = wanted + dense(x)
    for order in permutations(payloads):
        mean = codec.decode(codec.add(order))
        assert dense(mean).tobytes() == (wanted / np.float32(workers)).tobytes()
    assert bits_of(average(codec, xs)) == bits_of(mean)


def test_a_row_that_is_sent_is_an_entry_whatever_it_holds():
    x = RowSlices((5, 2), np.array([1, 4]), np.zeros((2, 2), np.float32))
    assert average(Rows(2), [x, x]).numbers.tolist() == [1, 4]


def test_what_does_not_belong_together():
    codec, x = Rows(2), table(9, 2, 0)
    terms = codec.propose(x)
    payload = codec.encode(x, terms, rank=0)
    with pytest.raises(MismatchError, match="a payload adds only once"):
        payload + payload
    with pytest.raises(MismatchError, match="owner has closed"):
        codec.add([payload]).part(0, 2) + codec.encode(x, terms, rank=1)
    with pytest.raises(MismatchError, match="kind of values"):
        payload + codec.encode(table(9, 2, 0, "float16"), terms, rank=1)
    with pytest.raises(MismatchError, match="shape"):
        codec.encode(table(9, 3, 0), terms, rank=0)
    with pytest.raises(InputError, match="no rows to add"):
        codec.propose(np.ones((3, 3), np.float32))
