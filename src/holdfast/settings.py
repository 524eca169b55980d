"""Settings: `{root}/config.toml`, overridden by `HOLDFAST_<TABLE>_<KEY>`, typed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import SettingsError


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[session]`: how sessions are kept."""

    durability: Literal["always", "os"] = "always"  # fdatasync before return, or the kernel's time
    part_bytes: Annotated[int, msgspec.Meta(ge=1)] = 50_000_000
    total_bytes: Annotated[int, msgspec.Meta(ge=0)] = 200_000_000  # 0: no limit
    line_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16_000_000
    lock_seconds: Annotated[float, msgspec.Meta(ge=0)] = 5.0  # how long an append waits for another


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tables."""

    session: SessionSettings = SessionSettings()


def parse(text: str, environment: Mapping[str, str], *, origin: str = "config.toml") -> Settings:
    """Settings from a configuration file's text and the environment."""
    import tomllib  # noqa: PLC0415 - most roots have no configuration file

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{origin}: {error}", hint="fix the TOML syntax") from error
    return convert(data, environment, origin=origin)


def convert(
    data: dict[str, Any], environment: Mapping[str, str], *, origin: str = "config.toml"
) -> Settings:
    """Settings from tables and the environment."""
    for table, key, variable, text in _overrides(environment):
        try:
            value = msgspec.convert(text, _TABLES[table][key], strict=False)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{variable}: {error}") from error
        if not isinstance(data.setdefault(table, {}), dict):
            raise SettingsError(f"{origin}: [{table}] must be a table")
        data[table][key] = value
    try:
        return msgspec.convert(data, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{origin}: {error}", hint="docs/settings.md has every key") from error


def _overrides(environment: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """The variables that set something; one with a table's name and no key of it is an error."""
    found = []
    for variable, text in environment.items():
        for table, keys in _TABLES.items():
            prefix = f"HOLDFAST_{table.upper()}_"
            if variable.startswith(prefix):
                key = variable.removeprefix(prefix).lower()
                if key not in keys:
                    raise SettingsError(f"{variable}: [{table}] has no key {key!r}")
                found.append((table, key, variable, text))
    return found


_TABLES: dict[str, dict[str, Any]] = {
    "session": {field.name: field.type for field in msgspec.structs.fields(SessionSettings)}
}
