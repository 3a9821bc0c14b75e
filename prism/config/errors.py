"""How a configuration is refused: every problem at once, each with its path, value and remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong. `path` is like `models[0].slo.ttft_s`; `message` names value and remedy."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ValueError):
    """The configuration cannot be used; `problems` says why, `source` where it came from."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{source} is not a usable configuration:\n{lines}")
