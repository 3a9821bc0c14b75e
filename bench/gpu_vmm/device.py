"""A CUDA device through the driver's own calls: what the bench measures, without anything of ours in between.

Needs nothing but the driver library, so that it also runs where this package is not built.
"""

import ctypes
from collections.abc import Callable
from typing import Any

OUT_OF_MEMORY = 2
POSIX_FD = 1
_VMM_SUPPORTED = 102
_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3


class CallFailed(Exception):
    """A driver call that did not succeed."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} answered {code}")
        self.code = code


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_handle_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _AccessDesc(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Device:
    """The first device of a driver library, its primary context current on this thread."""

    def __init__(self, library: str) -> None:
        """Raises OSError without the library, CallFailed or RuntimeError without a usable device."""
        self._library = ctypes.CDLL(library)
        self.call("cuInit", ctypes.c_uint(0))
        count = self._ask(ctypes.c_int, "cuDeviceGetCount")
        if count < 1:
            raise RuntimeError("the driver knows no device")
        self._device = ctypes.c_int(self._ask(ctypes.c_int, "cuDeviceGet", ctypes.c_int(0)))
        if not self._ask(ctypes.c_int, "cuDeviceGetAttribute", ctypes.c_int(_VMM_SUPPORTED), self._device):
            raise RuntimeError("device 0 does not support virtual memory management")
        context = ctypes.c_void_p(self._ask(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", self._device))
        self.call("cuCtxPushCurrent_v2", context)

    def has(self, *names: str) -> bool:
        """Whether the library offers all of these calls; the stand-in runs no kernels."""
        return all(hasattr(self._library, name) for name in names)

    def attempt(self, name: str, *arguments: Any) -> int:
        """The code that the call answers."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """As attempt, but CallFailed unless it succeeds."""
        code = self.attempt(name, *arguments)
        if code:
            raise CallFailed(name, code)

    def _ask(self, kind: Callable[[], Any], name: str, *arguments: Any) -> Any:
        answer = kind()
        self.call(name, ctypes.byref(answer), *arguments)
        return answer.value

    # ---- facts ---------------------------------------------------------------------------------------------

    def name(self) -> str:
        """What the driver calls the device."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, ctypes.c_int(256), self._device)
        return text.value.decode()

    def driver_version(self) -> int:
        """12080 for CUDA 12.8."""
        return int(self._ask(ctypes.c_int, "cuDriverGetVersion"))

    def granularity_bytes(self, *, recommended: bool = False) -> int:
        """Unit of every size and address."""
        prop = self._prop(exportable=False)
        size, option = ctypes.c_size_t(), ctypes.c_int(recommended)
        self.call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(prop), option)
        return size.value

    def free_bytes(self) -> int:
        """Memory that the device has left."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    # ---- the verbs -----------------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory."""
        zeros = (ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        return int(self._ask(ctypes.c_uint64, "cuMemAddressReserve", ctypes.c_size_t(nbytes), *zeros))

    def free(self, base: int, nbytes: int) -> None:
        """Give addresses back."""
        self.call("cuMemAddressFree", ctypes.c_uint64(base), ctypes.c_size_t(nbytes))

    def create(self, nbytes: int, *, exportable: bool = False) -> int:
        """Physical memory, as a handle."""
        prop = ctypes.byref(self._prop(exportable=exportable))
        size, flags = ctypes.c_size_t(nbytes), ctypes.c_uint64(0)
        return int(self._ask(ctypes.c_uint64, "cuMemCreate", size, prop, flags))

    def release(self, handle: int) -> None:
        """Give a handle back; its memory goes with its last mapping."""
        self.call("cuMemRelease", ctypes.c_uint64(handle))

    def map(self, at: int, nbytes: int, handle: int, *, offset: int = 0) -> None:
        """Put memory under addresses."""
        place = (ctypes.c_uint64(at), ctypes.c_size_t(nbytes), ctypes.c_size_t(offset))
        self.call("cuMemMap", *place, ctypes.c_uint64(handle), ctypes.c_uint64(0))

    def set_access(self, at: int, nbytes: int) -> None:
        """Let this device read and write a mapped range."""
        access = _AccessDesc(_Location(_ON_DEVICE, self._device.value), _READ_WRITE)
        place = (ctypes.c_uint64(at), ctypes.c_size_t(nbytes))
        self.call("cuMemSetAccess", *place, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self, at: int, nbytes: int) -> None:
        """Take the memory from under addresses."""
        self.call("cuMemUnmap", ctypes.c_uint64(at), ctypes.c_size_t(nbytes))

    def export(self, handle: int) -> int:
        """A file descriptor for a handle's memory."""
        fd, kind = ctypes.c_int(-1), ctypes.c_int(POSIX_FD)
        self.call(
            "cuMemExportToShareableHandle",
            ctypes.byref(fd),
            ctypes.c_uint64(handle),
            kind,
            ctypes.c_uint64(0),
        )
        return fd.value

    def import_handle(self, fd: int) -> int:
        """A handle for another process's memory."""
        kind = ctypes.c_int(POSIX_FD)
        return int(self._ask(ctypes.c_uint64, "cuMemImportFromShareableHandle", ctypes.c_void_p(fd), kind))

    def write(self, at: int, data: bytes) -> None:
        """Copy to the device."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(at), data, ctypes.c_size_t(len(data)))

    def read(self, at: int, nbytes: int) -> bytes:
        """Copy from the device."""
        data = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(at), ctypes.c_size_t(nbytes))
        return data.raw

    def _prop(self, *, exportable: bool) -> _AllocationProp:
        location = _Location(_ON_DEVICE, self._device.value)
        return _AllocationProp(_PINNED, POSIX_FD if exportable else 0, location)

    # ---- kernels -------------------------------------------------------------------------------------------

    def load_kernel(self, ptx: str, name: str) -> ctypes.c_void_p:
        """Compile PTX text and find a kernel in it."""
        module = ctypes.c_void_p(self._ask(ctypes.c_void_p, "cuModuleLoadData", ptx.encode()))
        return ctypes.c_void_p(self._ask(ctypes.c_void_p, "cuModuleGetFunction", module, name.encode()))

    def launch(self, kernel: ctypes.c_void_p, *arguments: int) -> None:
        """Start one thread of a kernel whose arguments are all 64 bits wide; does not wait."""
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        parameters = (ctypes.c_void_p * len(values))(*pointers)
        shape = [ctypes.c_uint(1)] * 6
        self.call("cuLaunchKernel", kernel, *shape, ctypes.c_uint(0), None, parameters, None)

    def synchronize(self) -> int:
        """Wait for all kernels; the code that the driver answers."""
        return self.attempt("cuCtxSynchronize")
