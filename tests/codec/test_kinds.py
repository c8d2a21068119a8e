"""Tensors of every kind: encoded, or refused in our own words before anything is changed."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import sumwire
from sumwire import InputError, Lattice, Residual, Rows, Sketch, Sparse, SumwireError
from sumwire.aggregate.local import Local
from sumwire.codec.adaptive import Adaptive
from sumwire.codec.base import Codec
from sumwire.codec.sparse.compact import Compact
from sumwire.codec.stacked import Stacked

OTHERS = "use float32, float16, bfloat16 or float64, for example"


def kinds() -> dict[str, tuple[Any, str]]:
    """Tensors with what a Lattice says about them; nothing if it encodes them."""
    ones = torch.ones(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that some layouts are beta
        return {
            "float8": (ones.to(torch.float8_e4m3fn), rf"dtype torch.float8_e4m3fn .*: {OTHERS} x.to\(torch.bfloat16\)"),
            "nested": (torch.nested.nested_tensor([ones, ones[:3]]), "a nested tensor .*: its rows differ in length"),
            "jagged": (torch.nested.nested_tensor([ones, ones[:3]], layout=torch.jagged), "a nested tensor"),
            "negative": (torch.full((8,), 2 + 3j).conj().imag, ""),
            "conjugate": (torch.full((8,), 2 + 3j).conj(), rf"complex64 .*: {OTHERS} torch.view_as_real\(x\)"),
            "quantized": (torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8), r"\(torch.qint8\) .* x.dequantize\(\)"),
            "meta": (torch.ones(8, device="meta"), "meta device has no values to encode: load or create them"),
            "csr": (torch.eye(3).to_sparse_csr(), r"layout torch.sparse_csr .* x.to_dense\(\), or use sumwire.Sparse"),
            "coo": (torch.eye(3).to_sparse(), r"layout torch.sparse_coo .*, or sumwire.Rows for COO"),
            "coo of integers": (torch.eye(3).int().to_sparse(), "layout torch.sparse_coo"),
            "mkldnn": (
                ones.to_mkldnn(),
                r"layout torch._mkldnn cannot be encoded: make it dense first, x.to_dense\(\)$",
            ),
            "requires grad": (ones.clone().requires_grad_(), ""),
            "parameter": (torch.nn.Parameter(ones), ""),
            "bfloat16": (ones.bfloat16(), ""),
            "strided": (torch.ones(8, 2)[:, 0], ""),
            "integers": (ones.long(), rf"dtype torch.int64 .*: {OTHERS} x.float\(\)"),
            "booleans": (ones.bool(), rf"dtype torch.bool .*: {OTHERS} x.float\(\)"),
            "uint16": (ones.to(torch.uint16), rf"dtype torch.uint16 .*: {OTHERS}"),
            "array of integers": (np.ones(8, int), rf"dtype int64 .*: {OTHERS} np.asarray\(x, np.float32\)"),
            "array of complex": (np.ones(8, complex), rf"dtype complex128 .*: {OTHERS} x.view"),
            "array of float8": (np.ones(8, ml_dtypes.float8_e5m2), rf"float8_e5m2 .*: {OTHERS} x.astype\(np.float32\)"),
            "array of bfloat16": (np.ones(8, ml_dtypes.bfloat16), ""),
            "array of objects": (np.ones(8, object), f"dtype object .*: {OTHERS}"),
            "array of strings": (np.ones(8, "U3"), f"dtype <U3 .*: {OTHERS}"),
            "masked": (np.ma.masked_array(np.ones(8)), r"masked array cannot be encoded: fill it first, x.filled\(0\)"),
            "list": ([1.0, 2.0], ""),
            "ragged list": (
                [[1.0], [1.0, 2.0]],
                "a list cannot be made an array .*: pass an array or tensor of floats",
            ),
            "nothing": (None, "a NoneType cannot be encoded: use float32, .*, in an array or tensor"),
            "dict": ({"a": 1.0}, "a dict cannot be encoded: use float32, .*, in an array or tensor"),
            "module": (torch.nn.Linear(2, 2), "a Linear cannot be encoded: use float32"),
        }


KINDS = kinds()
CODECS: dict[str, Codec] = {
    "lattice": Lattice(1),
    "sparse": Sparse(1),
    "sketch": Sketch(1),
    "rows": Rows(1),
    "compact": Compact(1),
    "adaptive": Adaptive(Lattice(1), Sparse(1)),
    "stacked": Stacked(Lattice(1), 8),
}
ONES = {"rows": torch.eye(3).to_sparse(), "stacked": np.ones((8, 2), np.float32)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lattice_encodes_it_or_says_what_to_do(kind: str) -> None:
    x, says = KINDS[kind]
    codec = Lattice(1)
    if not says:
        assert codec.encode(x, codec.propose(x), rank=0).count == 1
        return
    with pytest.raises(InputError, match=says):
        codec.propose(x)
    with pytest.raises(InputError, match=says):
        codec.encode(x, codec.propose(np.ones(8, np.float32)), rank=0)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_codec_lets_an_error_of_torch_or_numpy_out(kind: str, name: str) -> None:
    x, codec = KINDS[kind][0], CODECS[name]
    terms = codec.propose(ONES.get(name, np.ones(8, np.float32)))
    for attempt in (
        lambda: codec.propose(x),
        lambda: codec.encode(x, terms, rank=0),
        lambda: sumwire.average(codec, [x]),
        lambda: Local.create(1, codec)[0].average(x),
    ):
        with suppress(SumwireError):
            attempt()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][1]])
def test_a_residual_is_as_it_was(kind: str) -> None:
    codec = Lattice(1, 2, feedback=True)
    residual = Residual(codec)
    sumwire.average(codec, [np.arange(8, dtype=np.float32)], residuals=[residual])
    before = residual.state_dict()["value"].clone()
    with pytest.raises(InputError):
        sumwire.average(codec, [KINDS[kind][0]], residuals=[residual])
    assert torch.equal(residual.state_dict()["value"], before)


def test_negative_views_have_their_values() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    assert sumwire.average(Sparse(1), [x]).tolist() == [-2, 4]
    assert sumwire.average(Sparse(1), [x.bfloat16()]).tolist() == [-2, 4]


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (np.empty(7, np.float32), "out has 7 values, the tensor 8: pass one of its shape, or omit it"),
        (torch.empty(9), "out has 9 values, the tensor 8"),
        (np.empty(8, int), "out of dtype int64 cannot be written to: pass a dense, writable"),
        (torch.empty(8, dtype=torch.int32), "out of dtype torch.int32 cannot be written to"),
        (torch.eye(8).to_sparse()[0], "out of dtype torch.float32 cannot be written to: pass a dense"),
        (np.broadcast_to(np.float32(1), 8), "out of dtype float32 cannot be written to: pass a dense, writable"),
        ([0.0] * 8, "out is a list: pass an array or tensor of 8 floats, or omit it"),
    ],
)
def test_where_a_mean_cannot_go(out: Any, says: str) -> None:
    """Before the round, which the others would have done in vain."""
    with pytest.raises(InputError, match=says):
        Local.create(1, Lattice(1))[0].average(np.ones(8, np.float32), out=out)
