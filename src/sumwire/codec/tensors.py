"""Tensors as users have them, seen as flat arrays that the kernels can read.

NumPy (float16/32/64), ml_dtypes (bfloat16) and torch tensors are accepted without importing either library: those
on the CPU as NumPy's view of them, those on a GPU as they are, where the codec has kernels for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import InputError
from sumwire.kernels import backend
from sumwire.kernels.arrays import Bytes, Floats, to_float32

Tensor: TypeAlias = Any
"""Anything that `flatten` accepts."""

TORCH_DTYPES = ("torch.float32", "torch.float16", "torch.bfloat16", "torch.float64")
_NATIVE = {np.dtype(t): np.dtype(t) for t in (np.float32, np.float16, np.float64)}


def flatten(x: Tensor, *, on_device: bool = False) -> tuple[NDArray[np.generic], tuple[int, ...]]:
    """The tensor's values in row-major order, without a copy where it is contiguous, and its shape.

    bfloat16 comes back as uint16, which is how the kernels know it. With `on_device`, for codecs that have kernels for
    it, a tensor on a GPU stays a tensor.
    """
    if on_device and is_on_device(x):
        check_torch(x, anywhere=True)
        if str(x.dtype) not in TORCH_DTYPES:
            refuse_dtype(str(x.dtype), torch=True)
        held: Any = x.detach().resolve_neg().contiguous()
        return held.view(-1), tuple(x.shape)
    array = x if type(x) is np.ndarray else _to_numpy(x)
    kind = _NATIVE.get(array.dtype.newbyteorder("="))
    if kind is None and _is_torch(x) and array.dtype == np.uint16:
        kind = np.dtype(np.uint16)
    elif kind is None and array.dtype.name == "bfloat16":
        array, kind = array.view(np.uint16), np.dtype(np.uint16)
    if kind is None:
        refuse_dtype(str(array.dtype), torch=False)
    shape = array.shape
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype == kind and array.dtype.isnative):
        array = np.ascontiguousarray(array, dtype=kind)
    return array.reshape(-1), shape


def on_host(flat: Any) -> NDArray[np.generic]:
    """What `flatten` returned, as an array of the host."""
    return _numpy_of(flat.cpu()) if _is_torch(flat) else flat


def beside(flat: Any, x: Tensor) -> Any:
    """What `flatten` returned, on the device of x if that is a tensor, else in the host's memory."""
    if not _is_torch(x):
        return on_host(flat)
    return (flat if _is_torch(flat) else sys.modules["torch"].from_numpy(flat)).to(x.device)


def as_float32(flat: Any) -> Any:
    """What `flatten` returned in float32, without a copy if it is that."""
    return flat.float() if _is_torch(flat) else to_float32(flat)


def add_arrays(x: Any, y: Any, out: Any) -> None:
    """out = x + y of arrays, or of tensors of one device."""
    (sys.modules["torch"] if _is_torch(x) else np).add(x, y, out=out)


def all_finite(x: Any) -> bool:
    """Whether an array or tensor holds neither NaN nor Inf."""
    return bool((sys.modules["torch"] if _is_torch(x) else np).isfinite(x).all())


def concatenated(pieces: Sequence[Bytes]) -> Bytes:
    """Arrays, or tensors of one device, behind one another."""
    if pieces and _is_torch(pieces[0]):
        return cast("Bytes", sys.modules["torch"].cat(list(pieces)))
    return np.concatenate([np.empty(0, np.uint8), *pieces])


def stacked(rows: Sequence[Floats]) -> Floats:
    """Arrays, or tensors of one device, as rows of one."""
    if _is_torch(rows[0]):
        return cast("Floats", sys.modules["torch"].stack(list(rows)))
    return np.stack(rows)


def is_on_device(x: Tensor) -> bool:
    """Whether this is a torch tensor that kernels read where it lies."""
    return _is_torch(x) and backend.takes(x)


def _is_torch(x: Tensor) -> bool:
    return hasattr(x, "detach") and hasattr(x, "element_size")


def _to_numpy(x: Tensor) -> NDArray[Any]:
    """NumPy's view of it; a torch bfloat16 tensor as uint16, since NumPy has no bfloat16."""
    if isinstance(x, np.ma.MaskedArray):
        raise InputError("a masked array cannot be encoded: fill it first, x.filled(0)")
    if not _is_torch(x):
        return _as_array(x)
    check_torch(x)
    dtype = str(x.dtype)
    if dtype not in TORCH_DTYPES:
        refuse_dtype(dtype, torch=True)
    try:
        return _numpy_of(x.detach().resolve_neg())  # what .imag of a conjugate is
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"a {type(x).__name__} of dtype {dtype} cannot be encoded, because torch does not show its values "
            f"({str(error).splitlines()[0]}): pass a plain tensor, for example x.to_local() of a DTensor"
        ) from None


def _numpy_of(x: Tensor) -> NDArray[Any]:
    if str(x.dtype) == "torch.bfloat16":
        x = x.view(sys.modules["torch"].uint16)  # loaded already, as this is one of its tensors
    return np.asarray(x.numpy())


def check_torch(x: Tensor, *, anywhere: bool = False) -> None:
    """Raise `InputError` for a torch tensor that is not dense, or not on the CPU unless it may be `anywhere`."""
    if x.is_nested:
        raise InputError(
            "a nested tensor cannot be encoded: its rows differ in length; pad it, x.to_padded_tensor(0), or encode "
            "each of x.unbind()"
        )
    if x.device.type == "meta":
        raise InputError("a tensor on the meta device has no values to encode: load or create them on the CPU first")
    if x.is_quantized:
        raise InputError(f"a quantized tensor ({x.dtype}) cannot be encoded: pass its values, x.dequantize()")
    if x.device.type != "cpu" and not anywhere:
        raise InputError(f"a tensor on {x.device} cannot be encoded: move it to the CPU first, x.cpu()")
    if str(x.layout) != "torch.strided":
        others = ", or use sumwire.Sparse, or sumwire.Rows for COO of 4 or 2 bytes" if "sparse" in str(x.layout) else ""
        raise InputError(
            f"a {x.dtype} tensor of layout {x.layout} cannot be encoded: make it dense first, x.to_dense(){others}"
        )


def _as_array(x: object) -> NDArray[Any]:
    try:
        array = np.asarray(x)
    except Exception as error:  # whatever a class of somebody else raises
        raise InputError(
            f"a {type(x).__name__} cannot be made an array ({error}): pass an array or tensor of floats"
        ) from None
    if array.dtype.kind in "OUS" and not hasattr(x, "dtype"):
        raise InputError(
            f"a {type(x).__name__} cannot be encoded: use float32, float16, bfloat16 or float64, in an array or tensor"
        )
    return array


def refuse_dtype(dtype: str, *, torch: bool) -> NoReturn:
    """Raise `InputError` that says how to convert it."""
    if "complex" in dtype:
        remedy = "torch.view_as_real(x)" if torch else "x.view(np.float32) of a complex64 array"
    elif "float8" in dtype or "float4" in dtype:
        remedy = "x.to(torch.bfloat16)" if torch else "x.astype(np.float32)"
    else:
        remedy = "x.float()" if torch else "np.asarray(x, np.float32)"
    raise InputError(
        f"dtype {dtype} cannot be encoded: use float32, float16, bfloat16 or float64, for example {remedy}"
    )


def as_tensor(x: Tensor) -> Tensor:
    """x, or an array of what has no dtype of its own (a list, say)."""
    return x if hasattr(x, "dtype") else _as_array(x)


def shape_of(x: Tensor) -> tuple[int, ...]:
    """The shape of an array or tensor."""
    if _is_torch(x):
        check_torch(x, anywhere=backend.takes(x))
    if not hasattr(x, "shape"):
        raise InputError(f"a {type(x).__name__} has no shape: pass an array or tensor of floats")
    return tuple(x.shape)


def size_of(x: Tensor) -> int:
    """Coordinates."""
    return int(x.numel()) if _is_torch(x) else int(x.size)


def is_float64(x: Tensor) -> bool:
    return str(x.dtype).endswith("float64")


def check_out(out: Tensor, x: Tensor) -> None:
    """Raise `InputError` unless the mean of x can be written to `out`: before a round, rather than after it."""
    if _is_torch(x):
        if str(x.layout) != "torch.strided":
            return  # whose mean is another tensor in any case
        check_torch(x, anywhere=backend.takes(x))
    if not hasattr(out, "shape") or not hasattr(out, "dtype"):
        raise InputError(f"out is a {type(out).__name__}: pass an array or tensor of {size_of(x)} floats, or omit it")
    if _is_torch(out):
        floats, writable = out.dtype.is_floating_point, str(out.layout) == "torch.strided" and not out.is_nested
    else:
        floats, writable = out.dtype.kind == "f" or out.dtype.name == "bfloat16", out.flags.writeable
    if not floats or not writable:
        raise InputError(
            f"out of dtype {out.dtype} cannot be written to: pass a dense, writable array or tensor of floats, or "
            "omit it"
        )
    if size_of(out) != size_of(x):
        raise InputError(f"out has {size_of(out)} values, the tensor {size_of(x)}: pass one of its shape, or omit it")


def float32_pairs(x: Tensor) -> NDArray[np.float32]:
    """float64 values as two rows of float32 that add up to them, to 48 bits; Inf beyond float32."""
    flat = flatten(x)[0].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        high = flat.astype(np.float32)
        return np.stack([high, np.where(np.isfinite(high), flat - high, 0).astype(np.float32)])


def join_pairs(pairs: NDArray[np.float32]) -> NDArray[np.float64]:
    """The flat float64 values of two rows."""
    joined: NDArray[np.float64] = np.add(pairs[0], pairs[1], dtype=np.float64)
    return joined


def float32_view(out: Tensor) -> NDArray[np.float32] | None:
    """The tensor's own memory as a flat float32 array; None if it is of another dtype, or scattered.

    Of a tensor that kernels read where it lies, a flat tensor.
    """
    if is_on_device(out):
        same: Any = out.detach()
        return same.view(-1) if str(out.dtype) == "torch.float32" and out.is_contiguous() else None
    if _is_torch(out):
        if str(out.dtype) != "torch.float32" or out.device.type != "cpu" or not out.is_contiguous():
            return None
        out = out.detach().numpy()
    if out.dtype != np.float32 or not (out.flags.carray and out.dtype.isnative):
        return None
    flat: NDArray[np.float32] = out.reshape(-1)
    return flat


def give_back(mean: NDArray[Any], like: Tensor, out: Tensor | None = None) -> Tensor:
    """A decoded mean in the library and dtype of `like`, torch for torch and NumPy for the rest; or in `out`."""
    if _is_torch(mean):
        held: Any = mean
        if out is None:
            return held.to(like.dtype).view(like.shape)
        if out.data_ptr() != held.data_ptr():
            out.detach().copy_(held.view(out.shape))
        return out
    if out is not None:
        own = float32_view(out)
        if own is None or not np.may_share_memory(own, mean):
            _copy_into(out, mean)
        return out
    if _is_torch(like):
        return sys.modules["torch"].from_numpy(mean).to(like.device, like.dtype).view(like.shape)
    like = np.asarray(like)
    mean = mean.reshape(like.shape)
    return mean if like.dtype == mean.dtype else mean.astype(like.dtype)


def _copy_into(out: Tensor, mean: NDArray[Any]) -> None:
    if _is_torch(out):
        out.detach().copy_(sys.modules["torch"].from_numpy(mean).view(out.shape))
    else:
        out[...] = mean.reshape(out.shape)


def buffer(out: NDArray[Any] | None, size: int, dtype: type, *inputs: NDArray[Any]) -> NDArray[Any]:
    """Fresh memory, or the front of `out`, which must not overlap the inputs; where these are, if tensors."""
    tensor: Any = next((array for array in inputs if _is_torch(array)), None)
    if tensor is not None:
        kind = getattr(sys.modules["torch"], np.dtype(dtype).name)
        return cast("NDArray[Any]", _device_buffer(out, size, kind, tensor))
    if out is None:
        return np.empty(size, dtype)
    if not (isinstance(out, np.ndarray) and out.dtype == dtype and out.flags.carray):
        raise InputError(f"out must be a contiguous, aligned, writeable {np.dtype(dtype).name} array")
    if out.size < size:
        raise InputError(f"out holds {out.size} elements, {size} are needed: pass a larger one or omit it")
    lent = out.reshape(-1)[:size]
    if any(np.may_share_memory(lent, array) for array in inputs):
        raise InputError("out shares memory with an input, which would be overwritten while read: pass other memory")
    return lent


def _device_buffer(out: Any, size: int, dtype: Any, like: Tensor) -> Any:
    if out is None:
        return like.new_empty(size, dtype=dtype)
    if not (_is_torch(out) and out.dtype == dtype and out.device == like.device and out.is_contiguous()):
        raise InputError(f"out must be a contiguous {dtype} tensor on {like.device}, where the input is")
    if out.numel() < size:
        raise InputError(f"out holds {out.numel()} elements, {size} are needed: pass a larger one or omit it")
    lent = out.view(-1)[:size]
    begin, end = like.data_ptr(), like.data_ptr() + like.nbytes
    if lent.data_ptr() < end and begin < lent.data_ptr() + lent.nbytes:
        raise InputError("out shares memory with an input, which would be overwritten while read: pass other memory")
    return lent
