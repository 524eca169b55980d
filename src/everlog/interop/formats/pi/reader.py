"""Reading whole sessions of pi. An entry is preserved with its record under `pi`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import ForeignSession, Item, Source
from everlog.interop.formats.jsonl import (
    Row,
    event_kind,
    parse_lines,
    record_event,
    report_damage,
    text_of,
    unreadable_event,
)
from everlog.interop.formats.pi.entries import NAME, SESSION_EVENT, encode_json
from everlog.interop.formats.pi.tree import Tree
from everlog.model import Event, Message


def read(source: Source) -> ForeignSession:
    """Read a session from its file."""
    path = source.paths()[0]
    rows = list(parse_lines(source.lines(path), path))
    tree = Tree(source.name, rows, path, modified_ms=source.modified_ms)
    items: list[Item] = []
    for row in rows:
        if row.value is None:
            items.append(unreadable_event(NAME, source.name, row, path, tree.default_time))
        else:
            items.append(tree.item(row) or _read_event(tree, row, row.value))
    hidden = tree.hidden_branches()
    if hidden is not None:
        items.append(hidden)
    return ForeignSession(
        session_id=source.name,
        metadata=_read_metadata(tree.header, items),
        created_ms=max(epoch_ms(text_of(tree.header, "timestamp")) or source.modified_ms, 0),
        items=tuple(items),
        line_count=sum(not row.is_blank for row in rows),
        damage=report_damage(rows),
    )


def _read_event(tree: Tree, row: Row, value: dict[str, Any]) -> Event:
    kind = value.get("type")
    event_name = event_kind(NAME, kind if kind != "message" else "record")
    if value is tree.header:
        event_name = SESSION_EVENT
    elif event_name == SESSION_EVENT:
        event_name = f"{NAME}.record"
    event_id, timestamp = tree.ids[row.number], tree.timestamp(value)
    return record_event(row, event_name, event_id, timestamp, encode_json(value))


def _read_metadata(header: Mapping[str, Any], items: Iterable[Item]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for key in ("cwd", "parentSession"):
        if text_of(header, key):
            metadata[key] = header[key]
    for item in items:
        if isinstance(item, Message) and item.model:
            metadata["model"] = item.model
        elif isinstance(item, Event):
            for kind, key, field in (("session_info", "name", "name"), ("model_change", "modelId", "model")):
                if item.kind == f"{NAME}.{kind}" and text_of(item.data, key):
                    metadata[field] = item.data[key]
    return metadata
