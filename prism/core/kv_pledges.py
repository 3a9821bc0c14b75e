"""KV bytes promised to dispatched requests that the engines' own reports do not show yet.

An engine's `free_bytes` falls only when a request's prefill ran, so until then the promise is kept here.
Engines of a device draw on one budget: the promises of all count against each.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Pledge:
    instance: str
    nbytes: int
    prefilled: bool = False


@dataclass(slots=True)
class KvPledges:
    """A pledge lives from dispatch to the first engine report after its prefill was over, or to the end."""

    _pledges: dict[str, _Pledge] = field(default_factory=dict)
    _total_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes promised on this device and not yet visible in any report."""
        return self._total_bytes

    def fits(self, need_bytes: int, free_bytes: int, reserve_bytes: int) -> bool:
        """Would `need_bytes` more leave `reserve_bytes` of what the engine reported free?"""
        return self._total_bytes + need_bytes <= free_bytes - reserve_bytes

    def pledge(self, request_id: str, instance: str, nbytes: int) -> None:
        """Promise bytes to a request that is being dispatched."""
        self.release(request_id)
        self._pledges[request_id] = _Pledge(instance, nbytes)
        self._total_bytes += nbytes

    def prefilled(self, request_id: str) -> None:
        """The prompt's rows exist now: the next report of its engine shows them."""
        pledge = self._pledges.get(request_id)
        if pledge is not None:
            pledge.prefilled = True

    def reported(self, instance: str) -> None:
        """The engine reported: promises whose rows it shows are settled."""
        for request_id in [r for r, p in self._pledges.items() if p.prefilled and p.instance == instance]:
            self.release(request_id)

    def release(self, request_id: str) -> None:
        """The request is gone. Idempotent."""
        pledge = self._pledges.pop(request_id, None)
        if pledge is not None:
            self._total_bytes -= pledge.nbytes
