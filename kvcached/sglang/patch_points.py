"""Every place in SGLang that the plugin touches: one row each, nothing is patched elsewhere.

A row says what is hooked, which parameters the hook relies on, in which releases, why, and what upstream
change would let us delete it. `verify` holds an installed SGLang against this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvcached.sglang import buffers, scheduler

SUPPORTED_VERSIONS = ("0.5.21",)

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


@dataclass(frozen=True, slots=True)
class PatchPoint:
    """One hooked function. `parameters` are the names the hook needs, in the order of the signature."""

    target: str
    hook: Callable[..., Any]
    parameters: tuple[str, ...]
    versions: tuple[str, ...]
    why: str
    remove_when: str


PATCH_POINTS: tuple[PatchPoint, ...] = (
    PatchPoint(
        target="sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_buffers_normal",
        hook=buffers.create_buffers,
        parameters=("self",),
        versions=SUPPORTED_VERSIONS,
        why="K and V tensors lie in a reserved range that is backed on demand instead of torch.zeros",
        remove_when="SGLang takes the buffer allocator as an argument of the pool",
    ),
    PatchPoint(
        target="sglang.srt.mem_cache.memory_pool.MLATokenToKVPool._create_buffers",
        hook=buffers.create_latent_buffers,
        parameters=("self",),
        versions=SUPPORTED_VERSIONS,
        why="the same for latent rows, which hold K and V of multi-head latent attention",
        remove_when="SGLang takes the buffer allocator as an argument of the pool",
    ),
    PatchPoint(
        target="sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_token_to_kv_pool_allocator",
        hook=buffers.build_allocator,
        parameters=("self", "sizes", "token_to_kv_pool", "token_to_kv_pool_allocator"),
        versions=SUPPORTED_VERSIONS,
        why="slots come from backed pages, and admission, decode check and eviction ask the ledger",
        remove_when="the allocator class can be chosen on every platform (get_kv_pool_cls covers pools only)",
    ),
    PatchPoint(
        target="sglang.srt.managers.scheduler_components.pool_stats_observer.SchedulerPoolStatsObserver._get_token_info",
        hook=scheduler.report_usage,
        parameters=("self",),
        versions=SUPPORTED_VERSIONS,
        why="reported usage is rows in use over rows attainable now, not over rows reserved",
        remove_when="the denominator of token_usage is asked from the allocator",
    ),
    PatchPoint(
        target=f"{_SCHEDULER}.get_new_batch_prefill",
        hook=scheduler.prefill_pass,
        parameters=("self", "running_batch"),
        versions=SUPPORTED_VERSIONS,
        why="a refusal must not outlive its cause: batch_is_full is reset; steps begin and end here",
        remove_when="SGLang retries a NO_TOKEN refusal by itself when nothing runs",
    ),
    PatchPoint(
        target=f"{_SCHEDULER}.on_idle",
        hook=scheduler.idle_pass,
        parameters=("self",),
        versions=SUPPORTED_VERSIONS,
        why="an idle engine returns empty pages and serves requests of others for memory",
        remove_when="SGLang offers an idle callback",
    ),
    PatchPoint(
        target="sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode",
        hook=scheduler.retract_instead_of_abort,
        parameters=("self",),
        versions=SUPPORTED_VERSIONS,
        why="the last running request waits for memory in the queue; stock aborts it with status 500",
        remove_when="SGLang requeues the last request instead of aborting it",
    ),
)
