"""Which backend holds a device's memory, with the settings of this process applied."""

from __future__ import annotations

from kvcached import _core
from kvcached.config import Config
from kvcached.ledgers import device_name


def open_backend(config: Config, device: str, *, exportable: bool = False) -> _core.Backend:
    """The backend of ``cpu``, ``cuda`` or ``cuda:<index>``.

    Args:
        config: the settings of this process.
        device: whose memory.
        exportable: pages can be handed to other processes as file descriptors; costs a little on the host.

    Raises:
        Unavailable: there is no such device here, or it cannot export. Misuse: an unknown kind of device.
    """
    known = device_name(device)
    if known.startswith("cuda"):
        _core.set_libcuda_path(config.libcuda)
        return _core.Backend.cuda(int(known.removeprefix("cuda")), exportable)
    return _core.Backend.host(config.host_strict, exportable)


def cuda_unavailable_reason() -> str | None:
    """None when the CUDA backend can be used here, else why not; a wrong setting is a reason too."""
    try:
        _core.set_libcuda_path(Config.from_env().libcuda)
    except _core.KvcachedError as error:
        return str(error)
    return _core.cuda_unavailable_reason()
