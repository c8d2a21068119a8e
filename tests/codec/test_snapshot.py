"""The Snapshot codec: everyone takes the words of whoever has them."""

from __future__ import annotations

from functools import reduce
from itertools import permutations
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sumwire import ConfigError, HeadroomError, InputError, Lattice, MismatchError
from sumwire.codec.snapshot import NOTHING, Snapshot

words = st.integers(0, 20).flatmap(lambda size: arrays(np.int32, size))


@given(x=words, have=st.lists(st.booleans(), min_size=1, max_size=4))
def test_everyone_gets_the_words_of_those_who_have_them(x, have):
    codec = Snapshot(len(have))
    mine = [x if has else np.full_like(x, NOTHING) for has in have]
    wanted = x if any(have) else np.full_like(x, NOTHING)
    for order in permutations([codec.propose(each) for each in mine]):
        terms = reduce(or_, [*order, order[0]])
        total = sum(codec.encode(each, terms, rank=rank) for rank, each in enumerate(mine))
        np.testing.assert_array_equal(codec.decode(total), wanted)
        assert terms.digest == codec.propose(wanted).digest


def test_a_worker_too_many():
    codec = Snapshot(2)
    x = np.ones(3, np.int32)
    payload = codec.encode(x, codec.propose(x), rank=0)
    assert (payload + payload).count == 2
    with pytest.raises(HeadroomError, match="cannot add payload 3: .* built for 2 workers; build it with workers>=3"):
        codec.add([payload] * 3)


@pytest.mark.parametrize("x", [np.ones(3, np.float32), np.ones((2, 2), np.int32), np.ones(6, np.int32)[::2], [1, 2]])
def test_only_flat_words(x):
    with pytest.raises(InputError, match="flat, contiguous int32 array"):
        Snapshot(2).propose(x)


def test_what_does_not_belong_together():
    codec, x = Snapshot(2), np.ones(3, np.int32)
    with pytest.raises(MismatchError, match="codec family"):
        codec.propose(x) | Snapshot(3).propose(np.full(3, NOTHING))
    with pytest.raises(MismatchError, match="needs its own terms"):
        codec.encode(x, Lattice(2).propose(np.ones(3, np.float32)), rank=0)
    with pytest.raises(ConfigError, match="workers=0"):
        Snapshot(0)
