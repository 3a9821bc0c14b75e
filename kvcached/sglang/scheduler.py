"""Hooks on SGLang's scheduler: when steps begin and end, what a refusal leads to, what is reported."""

import dataclasses
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from kvcached.sglang.allocator import ElasticAllocator
from kvcached.sglang.buffers import memory_of
from kvcached.sglang.cache import SglangPrefixCache
from kvcached.sglang.waker import IdleWaker

_WAKER = "kvcached_waker"

_OVERHEAD_ROWS = 2
"""What admission adds to a request besides a page of overhead: a strict comparison and the next token."""

STALL_POLL_MS = 20
"""How long a scheduler with waiting requests, no memory and nothing to run sleeps between looks."""


def prefill_pass(original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
    """Hook on `get_new_batch_prefill`: a step boundary, then one admission pass whose refusal can be retried.

    Stock sets `batch_is_full` on a refusal and resets it when a request finishes: with nothing running it
    would never look again.
    """
    allocator = _elastic(scheduler)
    capacity = allocator.capacity
    if _may_unmap(scheduler):
        capacity.step_boundary(SglangPrefixCache(scheduler.tree_cache), idle=False)
    if running_batch.batch_is_full and capacity.refused and capacity.may_retry():
        running_batch.batch_is_full = False
        if running_batch.is_empty():
            _fit_waiting(scheduler)
    if running_batch.batch_is_full and scheduler.chunked_req is None:
        capacity.reserve(0)
        return original(scheduler, running_batch)
    capacity.begin_pass()
    plan = original(scheduler, running_batch)
    capacity.reserve(_unfilled_rows(scheduler.chunked_req))
    if capacity.refused and _may_unmap(scheduler):
        capacity.trim(idle=False)  # what the refused pass claimed and did not use goes back at its end
    capacity.end_pass()
    return plan


def idle_pass(original: Callable[..., Any], scheduler: Any) -> Any:
    """Hook on `on_idle`: an idle engine keeps no empty page; one that waits for memory waits politely."""
    allocator = _elastic(scheduler)
    fully_idle = scheduler.is_fully_idle()
    allocator.capacity.step_boundary(SglangPrefixCache(scheduler.tree_cache), idle=fully_idle)
    sleeper = scheduler.idle_sleeper
    if getattr(sleeper, "poller", None) is None:
        return original(scheduler)
    waker = _waker_of(scheduler)
    waker.sleep_begins()
    try:
        return original(scheduler)
    finally:
        if not fully_idle and allocator.capacity.refused:
            sleeper.poller.poll(STALL_POLL_MS)
        waker.sleep_ended()


def retract_instead_of_abort(original: Callable[..., Any], batch: Any) -> Any:
    """Hook on `retract_decode`: where stock aborts the last request with 500, it joins the retracted ones.

    Returns stock's triple (retracted requests, new token ratio, requests to abort).
    """
    allocator = batch.token_to_kv_pool_allocator
    allocator.spare_last_request(True)
    try:
        retracted, new_token_ratio, to_abort = original(batch)
    finally:
        allocator.spare_last_request(False)
    if batch.batch_size() == 1 and not batch.check_decode_mem():
        request = batch.reqs[0]
        batch.release_req(0, 0)
        batch.filter_batch(keep_indices=[])
        retracted.append(request)
    return retracted, new_token_ratio, to_abort


def report_usage(original: Callable[..., Any], observer: Any) -> Any:
    """Hook on the pool statistics: usage is rows in use over rows attainable now."""
    stats = original(observer)
    attainable_rows = observer.token_to_kv_pool_allocator.capacity.attainable_rows()
    return dataclasses.replace(stats, full_token_usage=stats.full_num_used / max(1, attainable_rows))


def _elastic(scheduler: Any) -> ElasticAllocator:
    allocator: ElasticAllocator = scheduler.token_to_kv_pool_allocator
    return allocator


def _unfilled_rows(chunked_request: Any) -> int:
    """Rows that the remaining chunks of a prompt will take; 0 where no prompt is under way."""
    if chunked_request is None:
        return 0
    return len(chunked_request.full_untruncated_fill_ids) - chunked_request.extend_range.end


def _fit_waiting(scheduler: Any) -> None:
    """Clip or end waiting requests that were accepted when more could be attained than now.

    Another engine that registers a floor lowers what this one can ever hold; without this a request that was
    accepted before would wait for good. What was retracted and has outgrown the engine ends with status 503.
    """
    allocator = _elastic(scheduler)
    attainable_rows = allocator.capacity.attainable_rows()
    for request in list(scheduler.waiting_queue):
        scheduler.init_req_max_new_tokens(request)
        held_rows = len(request.origin_input_ids) + len(request.output_ids)
        if request.output_ids and held_rows + allocator.page_size + _OVERHEAD_ROWS > attainable_rows:
            reason = FINISH_ABORT(
                f"The request holds {held_rows} tokens and this engine can no longer hold more than "
                f"{attainable_rows}: other engines were guaranteed memory since it began.",
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
            scheduler.abort_request(AbortReq(rid=request.rid, finished_reason=reason.to_json()))


def _waker_of(scheduler: Any) -> IdleWaker:
    """The scheduler's waker, started at the first idle moment."""
    waker: IdleWaker | None = getattr(scheduler, _WAKER, None)
    if waker is None:
        memory = memory_of(_elastic(scheduler).get_kvcache())
        waker = IdleWaker(memory.ledger, memory.client)
        waker.start(scheduler.idle_sleeper.poller)
        setattr(scheduler, _WAKER, waker)
    return waker


def _may_unmap(scheduler: Any) -> bool:
    """Whether no step that was launched earlier can still touch rows freed since.

    With overlap scheduling the previous step may be in flight on the device, and it writes one row for every
    request it was launched with, finished or not; then pages wait for the next idle moment.
    """
    return not scheduler.enable_overlap
