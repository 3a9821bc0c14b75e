"""Puts the plugin in force inside one SGLang process."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from kvcached.config import Config
from kvcached.sglang.patch_points import PATCH_POINTS
from kvcached.sglang.verify import verify_hooks, verify_targets, verify_version


def activate_plugin() -> None:
    """Check the version and the targets, hook them, and check that the hooks are in place.

    SGLang would apply hooks by itself later but swallows errors then, so they are applied here.

    Raises:
        Unavailable: an unsupported SGLang, a missing target or a hook that did not take.
        ConfigError: an impossible `KVCACHED_*` setting.
    """
    Config.from_env()
    verify_version()
    verify_targets()
    for point in PATCH_POINTS:
        HookRegistry.register(point.target, point.hook, HookType.AROUND)
    HookRegistry.apply_hooks()
    verify_hooks()
