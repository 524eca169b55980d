"""`everlog config show`: the settings in force, and where each comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from everlog.cli import output
from everlog.cli.options import chosen_home, command

HIDDEN = "(hidden)"


@command("show")
def show(as_json: bool) -> None:
    """Show every setting with its origin: default, file or environment."""
    import tomllib

    import msgspec

    from everlog.app import load_settings

    home = chosen_home()
    settings = _without_secrets(msgspec.to_builtins(load_settings(home)))
    file = home / "config.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    origins = {key: "default" for key, _ in _flatten(settings)}
    origins |= {key: "file" for key, _ in _flatten(tables) if key in origins}
    origins |= {key: "environment" for key in origins if _variable(key)}
    if as_json:
        path = str(file) if file.exists() else None
        answer = {"home": str(home), "file": path, "settings": settings, "origins": origins}
        output.print_json(answer)
        return
    rows = []
    for key, value in _flatten(settings):
        origin = {"file": str(file), "environment": _variable(key)}.get(origins[key], "default")
        rows.append((key, msgspec.json.encode(value).decode(), origin))
    output.print_table(("SETTING", "VALUE", "FROM"), rows)


def _without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """Replace the secrets in the settings by a placeholder."""
    for provider in settings["provider"].values():
        provider["api_key"] = HIDDEN if provider["api_key"] else ""
    for server in settings["mcp"].values():
        for table in ("env", "headers"):
            server[table] = dict.fromkeys(server[table], HIDDEN)
    return settings


def _flatten(tables: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values."""
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _variable(key: str) -> str:
    """Return the environment variable that sets a key or the table that the key is in."""
    parts = key.upper().split(".")
    names = ["_".join(("EVERLOG", *parts[:end])) for end in range(len(parts), 1, -1)]
    return next((name for name in names if name in os.environ), "")
