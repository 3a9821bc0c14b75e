"""A simulated engine: continuous batching with chunked prefill over a shared KV budget.

Like SGLang in what matters here: an iteration decodes one token for every running request and spends the rest
of its chunk on prompts; rows are taken for a whole prompt at admission and one per decoded token; when rows
run out the youngest request is retracted and prefilled again later; the last one never is.
"""

from collections import deque
from dataclasses import dataclass

from prism.sim.budget import Budget
from prism.sim.profile import EngineProfile
from prism.sim.setup import SimModel


@dataclass(slots=True)
class SimRequest:
    """A request in an engine: `produced` of `output_tokens` exist, `cached` rows of it are filled."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    produced: int = 0
    cached: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens whose rows it holds while it runs."""
        return self.prompt_tokens + self.produced

    @property
    def prefilling(self) -> bool:
        """Some of its context is not in the cache yet."""
        return self.cached < self.context_tokens


@dataclass(frozen=True, slots=True)
class Progress:
    """What an iteration brought one request: `prefilled_tokens` so far, its first token, or its end."""

    request: SimRequest
    first_token: bool
    finished: bool


class SimEngine:
    """One engine. The caller runs iterations: `begin` gives a duration, `end` what it brought."""

    def __init__(
        self, instance: str, model: SimModel, profile: EngineProfile, budget: Budget, row_bytes: int
    ) -> None:
        self.instance = instance
        self.model = model
        self.profile = profile
        self.last_iteration_s = 0.0
        self.retractions = 0
        self._budget = budget
        self._page_bytes = row_bytes * profile.page_rows
        self._waiting: deque[SimRequest] = deque()
        self._running: list[SimRequest] = []
        self._chunk: list[tuple[SimRequest, int]] = []  # prefill of the iteration under way
        self._decoding: list[SimRequest] = []  # decode of the iteration under way
        self.stepping = False

    @property
    def waiting(self) -> int:
        """Requests not admitted to the batch."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Some request is here."""
        return bool(self._waiting or self._running)

    @property
    def free_bytes(self) -> int:
        """KV bytes it could still use: the rest of its pages plus what the budget would give."""
        row_bytes = self._page_bytes // self.profile.page_rows
        backed = self._budget.used_bytes(self.instance) - self._rows() * row_bytes
        return max(0, backed) + self._budget.obtainable_bytes(self.instance)

    def could_ever_hold(self, tokens: int) -> bool:
        """Could a request of this total length finish here with nobody else about?"""
        pages_bytes = self._bytes(tokens)
        return tokens <= self.model.max_total_tokens and pages_bytes <= self._budget.attainable_bytes(
            self.instance
        )

    def submit(self, request: SimRequest) -> None:
        """A request comes in."""
        self._waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """Take a request out, with its rows; False when it is not here."""
        found = [r for r in (*self._waiting, *self._running) if r.request_id == request_id]
        for request in found:
            if request in self._running:
                self._running.remove(request)
            else:
                self._waiting.remove(request)
            self._chunk = [(r, n) for r, n in self._chunk if r is not request]
            self._decoding = [r for r in self._decoding if r is not request]
        if found:
            self._resize()
        return bool(found)

    def begin(self) -> float | None:
        """Start an iteration: its duration alone on the device, or None when there is nothing to do now."""
        if not self._make_room_for_decode():
            return None
        self._decoding = [r for r in self._running if not r.prefilling]
        self._chunk = self._fill_chunk(self.profile.chunk_tokens)
        if not self._chunk and not self._decoding:
            return None
        return self.profile.iteration_s(sum(n for _, n in self._chunk), len(self._decoding))

    def end(self) -> list[Progress]:
        """The iteration is over: what it brought, in batch order."""
        brought: list[Progress] = []
        for request, tokens in self._chunk:
            request.cached += tokens
            if request.prefilling:
                brought.append(Progress(request, first_token=False, finished=False))
                continue
            first = request.produced == 0
            brought.append(self._produce(request, first))
        brought += [self._produce(request, first=False) for request in self._decoding]
        self._chunk, self._decoding = [], []
        self._running = [r for r in self._running if r.produced < r.output_tokens]
        self._resize()
        return brought

    def _produce(self, request: SimRequest, first: bool) -> Progress:
        request.produced += 1
        request.cached = request.context_tokens  # a decoded token's row is filled by the step that reads it
        return Progress(request, first, finished=request.produced >= request.output_tokens)

    def _rows(self) -> int:
        return sum(request.context_tokens for request in self._running)

    def _bytes(self, rows: int) -> int:
        return -(-rows // self.profile.page_rows) * self._page_bytes

    def _resize(self) -> None:
        self._budget.try_use(
            self.instance, min(self._bytes(self._rows()), self._budget.used_bytes(self.instance))
        )

    def _fits(self, more_rows: int) -> bool:
        rows = self._rows() + more_rows
        return rows <= self.model.max_total_tokens and self._budget.try_use(self.instance, self._bytes(rows))

    def _make_room_for_decode(self) -> bool:
        """Take a row for every token about to be decoded, retracting the youngest while that fails.

        False when not even one request can go on: it waits for memory, which a floor would have kept for it.
        """
        while self._running and not self._fits(sum(not r.prefilling for r in self._running)):
            if len(self._running) == 1:
                return False
            request = self._running.pop()
            request.cached = 0
            self._waiting.appendleft(request)
            self.retractions += 1
            self._resize()
        return True

    def _fill_chunk(self, chunk_tokens: int) -> list[tuple[SimRequest, int]]:
        chunk: list[tuple[SimRequest, int]] = []
        for request in [r for r in self._running if r.prefilling]:
            tokens = min(chunk_tokens, request.context_tokens - request.cached)
            if tokens:
                chunk.append((request, tokens))
                chunk_tokens -= tokens
        while chunk_tokens and self._waiting and len(self._running) < self.model.max_running:
            request = self._waiting[0]
            growth = len(self._decoding) + len(chunk) + 1  # the tokens this iteration will produce
            if not self._fits(request.context_tokens + growth):
                break
            self._waiting.popleft()
            self._running.append(request)
            tokens = min(chunk_tokens, request.context_tokens)
            chunk.append((request, tokens))
            chunk_tokens -= tokens
        return chunk
