"""Profile files, good and bad."""

from pathlib import Path

import pytest

from prism.sim import EngineProfile, Profile, ProfileError, load_profile


def test_what_is_absent_keeps_its_default(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("colocation: 0.5\ndefault: {base_s: 0.1}\nmodels: {m: {chunk_tokens: 64}}\n")
    profile = load_profile(path)
    assert profile == Profile(
        EngineProfile(base_s=0.1), {"m": EngineProfile(base_s=0.1, chunk_tokens=64)}, colocation=0.5
    )
    assert profile.of("other") == EngineProfile(base_s=0.1)
    assert profile.slowdown(3) == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected a mapping"),
        ("speed: 1", "unknown key 'speed'"),
        ("default: {base: 1}", "default: unknown key 'base'"),
        ("default: {base_s: -1}", "default.base_s: -1 is not"),
        ("default: {base_s: fast}", "default.base_s: 'fast'"),
        ("models: {m: {page_rows: 0}}", "models.m.page_rows: 0 is not a whole number"),
        ("models: {m: 3}", "models.m: expected a mapping"),
        ("default: {base_s: 0, prefill_s_per_token: 0, decode_s_per_request: 0}", "no time at all"),
        ("{", "cannot be read"),
    ],
)
def test_bad_profiles(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
