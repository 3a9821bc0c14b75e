"""Layouts from one description, pools side by side in a process, and one reservation for several models."""

from __future__ import annotations

import dataclasses
import itertools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcached import proc
from kvcached._core import Backend, Ledger
from kvcached.errors import LedgerRefused, Misuse
from kvcached.kv_pool import KVCachePool
from kvcached.layout import KVCacheSpec, Layout

LAYOUTS: tuple[Layout, ...] = ("per_layer", "token_major")

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=2).map(tuple)
specs = st.builds(
    KVCacheSpec,
    layers=st.integers(1, 4),
    rows=st.integers(1, 300),
    row_shape=shapes,
    v_row_shape=st.none() | shapes,
    dtype=st.sampled_from(["bfloat16", "float32", "uint8"]),
    layout=st.sampled_from(LAYOUTS),
    page_bytes=st.sampled_from([None, 4096, 16384]),
    row_multiple=st.sampled_from([1, 16]),
    reserved_rows=st.integers(1, 20),
) | st.builds(
    KVCacheSpec,
    layers=st.integers(1, 4),
    rows=st.integers(1, 300),
    row_shape=shapes,
    latent=st.just(value=True),
    layout=st.sampled_from(LAYOUTS),
)


def make_pool(spec: KVCacheSpec, **options: object) -> KVCachePool:
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    return KVCachePool(Backend.host(), **fields, **options)  # type: ignore[arg-type]


def fill_and_check(pool: KVCachePool) -> None:
    """Every cell of every tensor is its own: what is written to all is read back from each."""
    rows = pool.alloc(pool.stats().rows_total)
    tensors = (*pool.k, *pool.v)
    contents = [torch.randint(0, 256, (len(rows), *tensor.shape[1:])).to(tensor.dtype) for tensor in tensors]
    for tensor, content in zip(tensors, contents, strict=True):
        tensor[rows] = content
    for tensor, content in zip(tensors, contents, strict=True):
        assert torch.equal(tensor[rows], content)
    pool.check_invariants()
    pool.free(rows)


@given(spec=specs)
def test_rows_of_a_description_never_overlap_and_fill_their_stripes(spec: KVCacheSpec) -> None:
    geometry = spec.geometry(Backend.host().capabilities)
    pieces: dict[int, list[tuple[int, int]]] = {}
    stride_bytes: dict[int, set[int]] = {}
    for part, nbytes in enumerate(spec.part_bytes):
        for layer in range(spec.layers):
            place = spec.place(part, layer)
            assert place.offset_bytes % spec.element.itemsize == 0
            pieces.setdefault(place.stripe, []).append((place.offset_bytes, place.offset_bytes + nbytes))
            stride_bytes.setdefault(place.stripe, set()).add(place.stride_bytes)
    assert sorted(pieces) == list(range(geometry.stripes))
    for stripe, parts in pieces.items():
        parts.sort()
        assert parts[0][0] == 0
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(parts))
        assert stride_bytes[stripe] == {parts[-1][1]}
    row_bytes = sum(parts[-1][1] for parts in pieces.values())
    assert geometry.page_set_bytes == row_bytes * geometry.rows_per_page


@settings(max_examples=40, deadline=None)
@given(spec=specs)
def test_any_layout_reads_back_what_was_written(spec: KVCacheSpec) -> None:
    with make_pool(spec) as pool:
        assert {tuple(tensor.shape) for tensor in pool.k} == {(pool.geometry.rows, *spec.row_shape)}
        assert len(pool.k) == spec.layers
        assert len(pool.v) == (0 if spec.latent else spec.layers)
        fill_and_check(pool)


def test_token_major_pages_hold_all_layers_of_fewer_tokens() -> None:
    spec = KVCacheSpec(layers=8, rows=2000, row_shape=(2, 16), page_bytes=65536)
    per_layer = spec.geometry(Backend.host().capabilities)
    token_major = dataclasses.replace(spec, layout="token_major").geometry(Backend.host().capabilities)
    assert (per_layer.stripes, token_major.stripes) == (16, 1)
    assert per_layer.rows_per_page == 16 * token_major.rows_per_page
    assert token_major.page_set_bytes == 65536


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"layout": "diagonal"}, "per_layer, token_major"), ({"v_row_shape": (1,), "latent": True}, "no V")],
)
def test_impossible_descriptions_are_misuse(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        KVCacheSpec(layers=1, rows=10, row_shape=(4,), **wrong)  # type: ignore[arg-type]


FIRST = KVCacheSpec(layers=4, rows=4000, row_shape=(2, 32))


@settings(max_examples=30, deadline=None)
@given(following=st.lists(specs, min_size=1, max_size=3))
def test_one_reservation_serves_one_model_after_another(following: list[KVCacheSpec]) -> None:
    with make_pool(FIRST) as pool:
        base = pool.core.base_address
        for spec in [*following, FIRST]:
            if spec.geometry(Backend.host().capabilities).reservation_bytes > pool.geometry.reservation_bytes:
                continue
            fill_and_check(pool)
            pool.realign(spec)
            assert pool.core.base_address == base == min(t.data_ptr() for t in (*pool.k, *pool.v))
            assert pool.spec == spec
            fill_and_check(pool)


def test_a_refused_realignment_leaves_the_old_rows_in_place(ledger_path: str) -> None:
    ledger = Ledger(ledger_path, 4 << 20)
    client = ledger.register(name="a")
    other = ledger.register(name="b")
    with make_pool(FIRST, client=client) as pool:
        padding_bytes = pool.mapped_bytes
        larger = dataclasses.replace(FIRST, rows=2 * FIRST.rows)
        needed_bytes = larger.geometry(Backend.host().capabilities).reservation_bytes
        with pytest.raises(
            Misuse, match=f"needs {needed_bytes} bytes .* has {pool.geometry.reservation_bytes}"
        ):
            pool.realign(larger)
        wide = dataclasses.replace(FIRST, rows=100, page_bytes=256 << 10)
        rows = pool.alloc(5)
        with pytest.raises(Misuse, match="5 rows are in use"):
            pool.realign(wide)
        pool.free(rows)
        pool.trim()
        other.set_floor((4 << 20) - padding_bytes)
        with pytest.raises(LedgerRefused):
            pool.realign(wide)
        other.set_floor(0)
        assert client.floor_bytes == client.used_bytes == padding_bytes
        assert pool.spec == FIRST
        fill_and_check(pool)
        pool.realign(wide)
        assert client.floor_bytes == pool.mapped_bytes > padding_bytes
        fill_and_check(pool)


def test_pools_of_one_process_keep_apart_in_memory_ledger_and_figures(ledger_path: str) -> None:
    """A hybrid model: full attention, a sliding window and a latent cache, each with its own pages."""
    ledger = Ledger(ledger_path, 64 << 20)
    made = {
        "full": KVCacheSpec(layers=3, rows=3000, row_shape=(2, 32)),
        "window": KVCacheSpec(layers=5, rows=500, row_shape=(4, 16), dtype="float32"),
        "latent": KVCacheSpec(layers=2, rows=1000, row_shape=(72,), latent=True, layout="token_major"),
    }
    pools = {
        name: make_pool(spec, client=ledger.register(name=f"engine.{name}")) for name, spec in made.items()
    }

    def resident(name: str) -> int:
        pool = pools[name].core
        return proc.rss_bytes(os.getpid(), pool.base_address, pool.geometry.reservation_bytes)

    ranges = sorted(
        (pool.core.base_address, pool.core.base_address + pool.geometry.reservation_bytes)
        for pool in pools.values()
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    for grown, pool in pools.items():
        others = {name: resident(name) for name in pools if name != grown}
        fill_and_check(pool)
        rows = pool.alloc(200)
        assert {name: resident(name) for name in others} == others
        assert resident(grown) == pool.mapped_bytes
        clients = {info.name: info for info in ledger.snapshot().clients}
        assert clients[f"engine.{grown}"].rows_used == pool.stats().rows_used == 200
        assert clients[f"engine.{grown}"].used_bytes == pool.mapped_bytes
        pool.free(rows)
    pools.pop("window").close()
    for pool in pools.values():
        fill_and_check(pool)
        pool.close()
