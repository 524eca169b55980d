"""Settings: a file, overridden by the environment, typed; what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import everlog
from everlog.app import load_settings
from everlog.settings import Settings, convert, parse


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {}) == Settings()
    assert Settings().session.part_bytes == 50_000_000
    assert Settings().session.total_bytes == 200_000_000
    assert Settings().session.durability == "always"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[session]\npart_bytes = 7\ndurability = "os"\n')
    settings = load_settings(tmp_path, {"EVERLOG_SESSION_PART_BYTES": "9", "EVERLOG_HOME": "/x"})
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
        ('[session]\ndimensions = "chat"', "session.dimensions"),
        ('[session]\ndimensions = ["chats"]', "dimensions: 'chats' is none of space, chat"),
        ("[session]\ndimensions = [1]", "session.dimensions"),
        ('[session]\ndm_scope = "main"', "session.dm_scope"),
        ('[session]\nidentity_links = ["tg:1"]', "session.identity_links"),
        ('[session.identity_links]\nalice = "tg:1"', "session.identity_links"),
        ('[session.identity_links]\nalice = [" "]', "identity_links] 'alice'"),
        ('[session.identity_links]\n"" = ["tg:1"]', "identity_links] ''"),
        ("[dispatch]\nrule = []", "rule"),
        ("[[dispatch.rules]]\nnick = 1", "nick"),
        ("[[dispatch.rules]]\n[dispatch.rules.when]\nchanel = 'x'", "chanel"),
        ("[[dispatch.rules]]\nwhen.mentioned = 'yes'", "when.mentioned"),
        ("[[dispatch.rules]]\nwhen.chat = 42", "dispatch.rules[0].when.chat"),
        ("[[dispatch.rules]]\n[[dispatch.rules]]\nsession_dimensions = ['x']", "2: session_dim"),
        ("[agents.x]\ndefualt = true", "defualt"),
        ("[agents.x]\ndefault = 'yes'", "default"),
        ("[compaction]\nthreshold = 1.5", "compaction.threshold"),
        ("[compaction]\nreserve_tokens = 10", "compaction.reserve_tokens"),
        ("[agents.x.compaction]\ncompact_threshold = 0.5", "agents.x.compaction"),
        ("[system.crab]\ncompact_threshold = 9000", "write [agents.crab.compaction] compact_threshold = 9000"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_key(text: str, names: str) -> None:
    with pytest.raises(everlog.SettingsError) as caught:
        parse(text, {})
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EVERLOG_SESSION_COLOUR", "1"),
        ("EVERLOG_SESSION_PART_BYTES", "many"),
        ("EVERLOG_SESSION_PART_BYTES", "0"),
        ("EVERLOG_SESSION_DURABILITY", "never"),
        ("EVERLOG_SESSION_DM_SCOPE", "main"),
        ("EVERLOG_SESSION_DIMENSIONS", "chat"),
        ("EVERLOG_SESSION_DIMENSIONS", '"chat"'),
        ("EVERLOG_SESSION_DIMENSIONS", "[" * 100_000),
        ("EVERLOG_SESSION_IDENTITY_LINKS", '{"alice": "tg:1"}'),
        ("EVERLOG_DISPATCH_RULES", '[{"nick": "x"}]'),
        ("EVERLOG_DISPATCH_RULE", "[]"),
    ],
)
def test_a_bad_variable_is_an_error_that_names_it(variable: str, value: str) -> None:
    with pytest.raises(everlog.SettingsError, match=variable):
        convert({}, {variable: value})


def test_an_id_under_two_names_is_an_error_that_names_both() -> None:
    with pytest.raises(everlog.SettingsError) as caught:
        parse('[session.identity_links]\nalice = ["x", "tg:1"]\nbob = [" TG:1"]', {})
    assert "'alice'" in str(caught.value) and "'bob'" in str(caught.value)
    assert "identity_links" in str(caught.value) and "\n" not in str(caught.value)
    parse('[session.identity_links]\nalice = ["x", "X"]\n" ALICE" = ["x"]', {})


def test_a_variable_gives_a_list_or_a_table_as_json() -> None:
    settings = convert(
        {"session": {"dimensions": ["chat"], "identity_links": {"bob": ["1"]}}},
        {
            "EVERLOG_SESSION_DIMENSIONS": "[]",
            "EVERLOG_SESSION_DM_SCOPE": "per-peer",
            "EVERLOG_SESSION_IDENTITY_LINKS": '{"alice": ["tg:1"]}',
            "EVERLOG_DISPATCH_RULES": '[{"agent": "x", "when": {"mentioned": true}}]',
        },
    )
    assert settings.session.dimensions == ()
    assert settings.session.dm_scope == "per-peer"
    assert settings.session.identity_links == {"alice": ("tg:1",)}
    assert settings.dispatch.rules[0].when.mentioned is True


def test_agents_keep_the_order_of_the_file() -> None:
    text = "[agents.zoe]\ndefault = true\n[agents.adam.compaction]\nwindow = 5\n[agents.eve]\n"
    agents = parse(text, {}).agents
    assert [(name, one.default) for name, one in agents.items()] == [("zoe", True), ("adam", False), ("eve", False)]
    assert agents["adam"].compaction == {"window": 5}


def test_a_linked_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "config.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(everlog.SettingsError, match="symbolic link"):
        load_settings(tmp_path, {})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(everlog.SettingsError):
        load_settings(tmp_path, {})


def test_unknown_addresses_are_refused() -> None:
    for address in ("redis://x", "mysql://x", "~nobody-here-by-that-name/x"):
        with pytest.raises(everlog.SettingsError):
            everlog.open_store(address)
