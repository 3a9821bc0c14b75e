"""SGLang's prefix cache as `capacity` sees it."""

from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, EvictParams


class SglangPrefixCache:
    """Adapts a radix tree, or the chunk cache that stands in for it when the tree is off."""

    __slots__ = ("_tree",)

    def __init__(self, tree: BasePrefixCache | None) -> None:
        self._tree = None if tree is None or tree.is_chunk_cache() else tree

    def evictable_rows(self) -> int:
        """Rows held by the tree that no running request uses; 0 without a tree."""
        return 0 if self._tree is None else int(self._tree.evictable_size())

    def evict(self, rows: int) -> None:
        """Evict at least `rows` rows, least recently used first, or all that is evictable."""
        if self._tree is not None and rows > 0:
            self._tree.evict(EvictParams(num_tokens=rows))
