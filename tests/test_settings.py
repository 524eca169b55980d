"""Settings: a file, overridden by the environment, typed; what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.app import load_settings
from holdfast.settings import Settings, convert, parse


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {}) == Settings()
    assert Settings().session.part_bytes == 50_000_000
    assert Settings().session.total_bytes == 200_000_000
    assert Settings().session.durability == "always"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[session]\npart_bytes = 7\ndurability = "os"\n')
    settings = load_settings(tmp_path, {"HOLDFAST_SESSION_PART_BYTES": "9", "HOLDFAST_ROOT": "/x"})
    assert settings.session.part_bytes == 9
    assert settings.session.durability == "os"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[session]\ncolour = 1", "colour"),
        ("[sesion]\n", "sesion"),
        ('[session]\ndurability = "never"', "durability"),
        ('[session]\npart_bytes = "many"', "part_bytes"),
        ("[session]\npart_bytes = 0", "part_bytes"),
        ("[session]\ntotal_bytes = -1", "total_bytes"),
        ("session = 3", "session"),
        ("[session\n", "line 1"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_key(text: str, names: str) -> None:
    with pytest.raises(holdfast.SettingsError) as caught:
        parse(text, {})
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOLDFAST_SESSION_COLOUR", "1"),
        ("HOLDFAST_SESSION_PART_BYTES", "many"),
        ("HOLDFAST_SESSION_PART_BYTES", "0"),
        ("HOLDFAST_SESSION_DURABILITY", "never"),
    ],
)
def test_a_bad_variable_is_an_error_that_names_it(variable: str, value: str) -> None:
    with pytest.raises(holdfast.SettingsError, match=variable):
        convert({}, {variable: value})


def test_a_linked_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "config.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(holdfast.SettingsError, match="symbolic link"):
        load_settings(tmp_path, {})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(holdfast.SettingsError):
        load_settings(tmp_path, {})


def test_unknown_addresses_are_refused() -> None:
    for address in ("redis://x", "postgresql://x", "~nobody-here-by-that-name/x"):
        with pytest.raises(holdfast.SettingsError):
            holdfast.open_store(address)
