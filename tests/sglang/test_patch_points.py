"""The table of patch points against the installed SGLang."""

import dataclasses

import pytest

from kvcached import errors
from kvcached.sglang import patch_points, verify


def test_installed_sglang_matches_the_table() -> None:
    verify.verify_version()
    verify.verify_targets()


def test_every_row_says_why_and_until_when() -> None:
    for point in patch_points.PATCH_POINTS:
        assert point.why
        assert point.remove_when
        assert set(point.versions) <= set(patch_points.SUPPORTED_VERSIONS)


def test_unhooked_sglang_is_refused() -> None:
    with pytest.raises(errors.Unavailable, match="is not hooked"):
        verify.verify_hooks()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "sglang.srt.managers.scheduler.Scheduler.no_such_method"}, "does not resolve"),
        ({"parameters": ("self", "no_such_parameter")}, "lacks .'no_such_parameter'"),
    ],
)
def test_changed_target_is_refused_with_remedy(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], message: str
) -> None:
    row = dataclasses.replace(patch_points.PATCH_POINTS[0], **change)  # type: ignore[arg-type]
    monkeypatch.setattr(verify, "PATCH_POINTS", (row,))
    with pytest.raises(errors.Unavailable, match=message) as raised:
        verify.verify_targets()
    assert "KVCACHED_ENABLE=0" in str(raised.value)


def test_unknown_version_is_refused_with_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "sglang_version", "0.4.0")
    with pytest.raises(errors.Unavailable, match=r"0\.4\.0 is not supported.*pip install sglang=="):
        verify.verify_version()
