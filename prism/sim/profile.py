"""How fast simulated engines are. An iteration takes a linear time in what it does.

    iteration_s = base_s + prefill_s_per_token * prefill tokens + decode_s_per_request * decoding requests

The defaults are ROUGH: of the order of a model of 0.1 to 0.2 billion parameters in SGLang on one CPU core.
They are made to compare policies with, not to predict a machine; measure yours and pass a profile file for
that.
"""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

MAX_PROFILE_BYTES = 2**20


class ProfileError(ValueError):
    """A profile file cannot be used; the message names file, place and value."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Speed of one model's engine, alone on its device. `load_s`: from Activate to ready."""

    base_s: float = 0.02
    prefill_s_per_token: float = 0.0008
    decode_s_per_request: float = 0.004
    load_s: float = 10.0
    chunk_tokens: int = 2048
    page_rows: int = 16

    def iteration_s(self, prefill_tokens: int, decoding: int) -> float:
        """Time of one iteration."""
        work_s = self.prefill_s_per_token * prefill_tokens + self.decode_s_per_request * decoding
        return self.base_s + work_s


@dataclass(frozen=True, slots=True)
class Profile:
    """Speeds per model; `default` for those not named. Busy engines of a device slow each other down.

    With k busy engines an iteration takes `1 + colocation * (k - 1)` times as long: 1 is plain time sharing.
    """

    default: EngineProfile = EngineProfile()
    models: dict[str, EngineProfile] = field(default_factory=dict)
    colocation: float = 1.0

    def of(self, model: str) -> EngineProfile:
        """The model's engine."""
        return self.models.get(model, self.default)

    def slowdown(self, busy_engines: int) -> float:
        """Factor on an iteration while this many engines of the device are busy, this one included."""
        return 1.0 + self.colocation * max(0, busy_engines - 1)


def load_profile(path: Path) -> Profile:
    """Read YAML `{colocation, default: {...}, models: {name: {...}}}`; what is absent keeps its default."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_PROFILE_BYTES + 1)
        if len(text) > MAX_PROFILE_BYTES:
            raise ProfileError(f"{path}: is larger than {MAX_PROFILE_BYTES} bytes; is it a profile?")
        document = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ProfileError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    sections = _mapping(document, str(path))
    unknown = sorted(set(sections) - {"colocation", "default", "models"})
    if unknown:
        raise ProfileError(f"{path}: unknown key {unknown[0]!r}; known are colocation, default, models")
    default = _engine(sections.get("default") or {}, EngineProfile(), f"{path}: default")
    models = _mapping(sections.get("models") or {}, f"{path}: models")
    return Profile(
        default=default,
        models={name: _engine(row, default, f"{path}: models.{name}") for name, row in models.items()},
        colocation=_number(sections.get("colocation", 1.0), f"{path}: colocation"),
    )


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ProfileError(f"{where}: expected a mapping of names, got {value!r:.80}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ProfileError(f"{where}: {value!r} is not a number of 0 or more")
    return float(value)


def _engine(row: object, default: EngineProfile, where: str) -> EngineProfile:
    given = _mapping(row, where)
    names = [f.name for f in fields(EngineProfile)]
    values: dict[str, float | int] = {name: getattr(default, name) for name in names}
    for name, value in given.items():
        if name not in names:
            raise ProfileError(f"{where}: unknown key {name!r}; known are {', '.join(names)}")
        number = _number(value, f"{where}.{name}")
        whole = name in ("chunk_tokens", "page_rows")
        if whole and (not isinstance(value, int) or value < 1):
            raise ProfileError(f"{where}.{name}: {value!r} is not a whole number of 1 or more")
        values[name] = int(number) if whole else number
    if values["base_s"] == values["prefill_s_per_token"] == values["decode_s_per_request"] == 0:
        raise ProfileError(f"{where}: an engine that takes no time at all cannot be simulated")
    return EngineProfile(**values)  # type: ignore[arg-type]
