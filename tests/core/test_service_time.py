"""The estimate starts at the configured rate and follows what is seen."""

import pytest

from prism.core.config import LocalModel
from prism.core.service_time import ServiceTime

MODEL = LocalModel("m", kv_bytes_per_token=1, prefill_tokens_per_s=100.0, overhead_s=0.5)


def service() -> ServiceTime:
    service = ServiceTime()
    service.configure((MODEL,))
    return service


def test_starts_from_the_configuration() -> None:
    assert service().work_s("m", 200) == pytest.approx(2.5)


def test_converges_to_the_observed_rate() -> None:
    calibrated = service()
    for _ in range(60):  # the engine really does 1000 tokens/s
        calibrated.observe("m", calibrated.work_s("m", 10_000) - 0.5, 10.0)
    assert calibrated.rate_tokens_per_s("m") == pytest.approx(1000.0, rel=0.01)


def test_waiting_for_neighbours_is_no_sign_of_slowness() -> None:
    calibrated = service()
    calibrated.observe("m", predicted_s=8.0, actual_s=8.0)  # 2 s of its own work behind 6 s of others'
    assert calibrated.rate_tokens_per_s("m") == pytest.approx(100.0)


def test_one_wild_observation_moves_little_and_many_stay_bounded() -> None:
    calibrated = service()
    calibrated.observe("m", 1.0, 1e9)
    assert calibrated.rate_tokens_per_s("m") > 50.0
    for _ in range(1000):
        calibrated.observe("m", 1.0, 1e9)
    assert calibrated.rate_tokens_per_s("m") == pytest.approx(1.0)


def test_what_was_learned_survives_a_new_configuration() -> None:
    calibrated = service()
    calibrated.observe("m", 2.0, 1.0)
    learned = calibrated.rate_tokens_per_s("m")
    calibrated.configure((MODEL, LocalModel("n", 1)))
    assert calibrated.rate_tokens_per_s("m") == learned
    calibrated.configure(())
    assert calibrated.work_s("m", 10) == 0.0
    calibrated.observe("m", 1.0, 1.0)
