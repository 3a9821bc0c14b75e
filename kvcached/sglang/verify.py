"""Holds the installed SGLang and its hooks against the table of patch points; a mismatch stops the start."""

import inspect
import pkgutil
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.version import __version__ as sglang_version

from kvcached import errors
from kvcached.sglang.patch_points import PATCH_POINTS, SUPPORTED_VERSIONS, PatchPoint


def verify_version() -> None:
    """Raise Unavailable unless the installed SGLang is one the table was written for."""
    if sglang_version not in SUPPORTED_VERSIONS:
        raise errors.Unavailable(
            f"SGLang {sglang_version} is not supported by this kvcached (supported: "
            f"{', '.join(SUPPORTED_VERSIONS)}). Remedy: pip install sglang=={SUPPORTED_VERSIONS[-1]}, or "
            "serve without kvcached by KVCACHED_ENABLE=0"
        )


def verify_targets() -> None:
    """Raise Unavailable unless every target exists with the parameters its hook needs; before hooking."""
    for point in PATCH_POINTS:
        names = tuple(inspect.signature(_resolve(point)).parameters)
        missing = [name for name in point.parameters if name not in names]
        if missing:
            raise _mismatch(point, f"has the parameters {names} and lacks {missing}")


def verify_hooks() -> None:
    """Raise Unavailable unless every hook is in place. Called after applying and again at pool creation."""
    for point in PATCH_POINTS:
        target = _resolve(point)
        applied = HookRegistry._patched  # noqa: SLF001 - apply_hooks() only logs what it could not apply
        if point.target not in applied or not hasattr(target, "__wrapped__"):
            raise _mismatch(point, "is not hooked (another plugin may have replaced it)")


def _resolve(point: PatchPoint) -> Any:
    try:
        return pkgutil.resolve_name(point.target)
    except (ImportError, AttributeError) as error:
        raise _mismatch(point, f"does not resolve: {error}") from error


def _mismatch(point: PatchPoint, what: str) -> errors.Unavailable:
    return errors.Unavailable(
        f"SGLang {sglang_version}: {point.target} {what}. Without this hook kvcached would be half applied "
        f"({point.why}). Remedy: install a supported SGLang ({', '.join(point.versions)}) without patches, "
        "or serve without kvcached by KVCACHED_ENABLE=0"
    )
