"""The KV budget of a simulated device, shared by its engines by the rule of kvcached's ledger."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Client:
    floor_bytes: int
    limit_bytes: int | None
    used_bytes: int = 0


@dataclass(slots=True)
class Budget:
    """Σ max(used, floor) over all engines never exceeds `total_bytes`."""

    total_bytes: int
    _clients: dict[str, _Client] = field(default_factory=dict)
    peak_bytes: int = 0

    def register(self, instance: str, floor_bytes: int, limit_bytes: int | None) -> None:
        """An engine starts."""
        self._clients[instance] = _Client(floor_bytes, limit_bytes)

    def used_bytes(self, instance: str | None = None) -> int:
        """Bytes in use by one engine, or by all."""
        if instance is not None:
            return self._clients[instance].used_bytes
        return sum(client.used_bytes for client in self._clients.values())

    def obtainable_bytes(self, instance: str) -> int:
        """What the engine could still get right now."""
        own = self._clients[instance]
        others = sum(max(c.used_bytes, c.floor_bytes) for i, c in self._clients.items() if i != instance)
        left = self.total_bytes - others - own.used_bytes
        if own.limit_bytes is not None:
            left = min(left, own.limit_bytes - own.used_bytes)
        return max(0, left)

    def attainable_bytes(self, instance: str) -> int:
        """The most the engine could ever hold: what the others' floors and its own limit leave."""
        own = self._clients[instance]
        most = self.total_bytes - sum(c.floor_bytes for i, c in self._clients.items() if i != instance)
        return most if own.limit_bytes is None else min(most, own.limit_bytes)

    def try_use(self, instance: str, nbytes: int) -> bool:
        """Set the engine's use; less always works, more only where obtainable."""
        client = self._clients[instance]
        if nbytes - client.used_bytes > self.obtainable_bytes(instance) and nbytes > client.used_bytes:
            return False
        client.used_bytes = nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes())
        return True
