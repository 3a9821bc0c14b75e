"""How many tokens a prompt has, for admission: counted with the model's own tokenizer where there is one.

The chat template is not rendered (that needs the engine's code); each message counts a few tokens for it.
Without a `tokenizer.json`, or without the `tokenizers` library, four bytes count as one token. The figure
orders and admits requests; limits are the engine's own to enforce.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from prism.live.api_request import ApiRequest

TEMPLATE_TOKENS_PER_MESSAGE = 4
BYTES_PER_TOKEN = 4
_INLINE_CHARACTERS = 4096  # about 1 ms; longer texts are tokenised off the event loop

log = logging.getLogger("prism.tokens")


class PromptCounter:
    """Counts tokens of one model's prompts."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load(folder / "tokenizer.json")

    async def count(self, request: ApiRequest) -> int:
        """Tokens of the whole prompt, at least 1."""
        fixed = request.token_ids + TEMPLATE_TOKENS_PER_MESSAGE * request.messages
        if sum(map(len, request.texts)) <= _INLINE_CHARACTERS:
            return max(1, fixed + self._count(request.texts))
        return max(1, fixed + await asyncio.to_thread(self._count, request.texts))

    def _count(self, texts: tuple[str, ...]) -> int:
        if self._tokenizer is None:
            return sum(-(-len(text.encode()) // BYTES_PER_TOKEN) for text in texts)
        return sum(len(self._tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)


def _load(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library raises bare Exception)
        log.warning("%s: not usable for counting prompt tokens (%s); estimating from bytes", path, error)
        return None
