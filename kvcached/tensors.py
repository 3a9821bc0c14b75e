"""Torch tensors over reserved addresses, made without touching or querying the memory beneath them.

The tensor is handed over by DLPack with its device named, so torch asks no driver about a pointer that may
have no memory yet. The owner of the addresses is attached to the tensor's storage, which every view shares,
so it lives at least as long as the last view.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import torch

from kvcached.errors import Misuse

Tensor = torch.Tensor
Dtype = torch.dtype

_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_DLPACK_UINT = 1


class _DlDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DlDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DlDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DlDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DlManagedTensor(ctypes.Structure):
    _fields_ = (("dl_tensor", _DlTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Block(ctypes.Structure):
    """A managed tensor with the two one-element arrays it points to, in one C allocation."""

    _fields_ = (("managed", _DlManagedTensor), ("shape", ctypes.c_int64), ("stride", ctypes.c_int64))


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = (ctypes.c_size_t,)
_FREE = ctypes.cast(_libc.free, ctypes.c_void_p).value

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_CAPSULE_NAME = b"dltensor"  # PyCapsule_New keeps the pointer, not a copy


def resolve_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """``"bfloat16"`` or ``torch.bfloat16`` -> ``torch.bfloat16``; Misuse for a name torch does not have."""
    resolved = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(resolved, torch.dtype):
        raise Misuse(
            f"dtype {dtype!r} is unknown to torch {torch.__version__}: use a name such as 'bfloat16'"
        )
    return resolved


def tensor_over(
    address: int, shape: tuple[int, ...], dtype: torch.dtype, device: str, owner: object
) -> torch.Tensor:
    """A contiguous tensor of ``shape`` at ``address``; nothing is read, written or queried.

    Args:
        shape: of the tensor, row-major.
        dtype: any torch dtype of whole bytes.
        address: first byte, aligned to the element size; ``prod(shape) * itemsize`` bytes from it must be
        reserved.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``.
        owner: kept alive for as long as any view of the tensor's storage lives.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes <= 0 or address <= 0 or address % dtype.itemsize:
        raise Misuse(
            f"no tensor of shape {shape} and dtype {dtype} at address {address:#x}: "
            "it needs at least one element and an address aligned to the element size"
        )
    return bytes_over(address, nbytes, device, owner).view(dtype).view(shape)


def bytes_over(address: int, nbytes: int, device: str, owner: object) -> torch.Tensor:
    """The ``nbytes`` at ``address`` as uint8; else as :func:`tensor_over`."""
    flat = torch.utils.dlpack.from_dlpack(_capsule(address, nbytes, device))
    setattr(flat.untyped_storage(), "kvcached_owner", owner)  # noqa: B010 - no attribute that torch declares
    return flat


def rows_of(
    stripe: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, *, offset_bytes: int, stride_bytes: int
) -> torch.Tensor:
    """``shape[0]`` rows of a stripe of bytes, each contiguous, ``stride_bytes`` apart."""
    item = dtype.itemsize
    row = torch.empty(shape[1:], device="meta").stride()
    return stripe.view(dtype).as_strided(shape, (stride_bytes // item, *row), offset_bytes // item)


def as_index(rows: np.ndarray) -> torch.Tensor:
    """Row numbers as an int64 tensor that shares the array's memory."""
    return torch.from_numpy(rows)


def as_rows(rows: object) -> np.ndarray:
    """Row numbers from a tensor (on any device), an array or a sequence, as a contiguous 1-D int64 array.

    Raises Misuse for anything that is not one dimension of integers.
    """
    if isinstance(rows, torch.Tensor):
        kind, dimensions = str(rows.dtype), rows.ndim
        is_plain = rows.layout is torch.strided and not (rows.is_meta or rows.is_quantized)
        is_number = rows.is_floating_point() or rows.is_complex()
        array = None
        if is_plain and (rows.numel() == 0 or not is_number):
            array = (rows if rows.numel() else rows.detach().to(torch.int64)).cpu().numpy()
    else:
        try:
            array = np.asarray(rows)
        except ValueError as error:  # ragged
            raise Misuse(f"rows must be one dimension of integers: {error}") from None
        kind, dimensions = str(array.dtype), array.ndim
    if array is not None and dimensions == 1 and (array.dtype.kind in "iu" or not array.size):
        return np.ascontiguousarray(array, dtype=np.int64)
    raise Misuse(f"rows must be one dimension of integers, not {dimensions} of {kind}: pass what alloc gave")


def _capsule(address: int, nbytes: int, device: str) -> object:
    """A DLPack capsule of ``nbytes`` uint8; torch takes it over and frees it with C's ``free``.

    The C function as the deleter means that no Python code runs when a storage dies, on whatever thread and
    however late in the life of the process that is.
    """
    kind, _, index = device.partition(":")
    pointer = _libc.malloc(ctypes.sizeof(_Block))
    if not pointer:
        raise MemoryError(f"malloc of {ctypes.sizeof(_Block)} bytes failed")
    block = _Block.from_address(pointer)
    block.shape, block.stride = nbytes, 1
    tensor = block.managed.dl_tensor
    tensor.data = address
    tensor.device = _DlDevice(_DLPACK_CPU if kind == "cpu" else _DLPACK_CUDA, int(index or 0))
    tensor.ndim = 1
    tensor.dtype = _DlDataType(_DLPACK_UINT, 8, 1)
    tensor.shape = ctypes.cast(pointer + _Block.shape.offset, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(pointer + _Block.stride.offset, ctypes.POINTER(ctypes.c_int64))
    tensor.byte_offset = 0
    block.managed.manager_ctx = None
    block.managed.deleter = _FREE
    return _new_capsule(pointer, _CAPSULE_NAME, None)
