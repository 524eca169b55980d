"""Whole sessions from pi's files. An entry stays with its record under `pi`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import Item, Read, Source
from everlog.interop.formats.jsonl import Row, aside, event, event_kind, lost, rows, text_of
from everlog.interop.formats.pi.entries import NAME, SESSION, compact
from everlog.interop.formats.pi.tree import Tree
from everlog.model import Event, Message


def read(source: Source) -> Read:
    """A session from its file."""
    path = source.paths()[0]
    found = list(rows(source.lines(path), path))
    tree = Tree(source.name, found, path, modified=source.modified)
    items: list[Item] = []
    for row in found:
        if row.value is None:
            items.append(aside(NAME, source.name, row, path, tree.now))
        else:
            items.append(tree.item(row) or _event(tree, row, row.value))
    left = tree.left()
    if left is not None:
        items.append(left)
    return Read(
        name=source.name,
        facts=_facts(tree.header, items),
        created=max(epoch_ms(text_of(tree.header, "timestamp")) or source.modified, 0),
        items=tuple(items),
        lines=sum(not row.blank for row in found),
        lost=lost(found),
    )


def _event(tree: Tree, row: Row, value: dict[str, Any]) -> Event:
    kind = value.get("type")
    word = event_kind(NAME, kind if kind != "message" else "record")
    if value is tree.header:
        word = SESSION
    elif word == SESSION:
        word = f"{NAME}.record"
    return event(row, word, tree.ids[row.number], tree.time(value), compact(value))


def _facts(header: Mapping[str, Any], items: Iterable[Item]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for key in ("cwd", "parentSession"):
        if text_of(header, key):
            facts[key] = header[key]
    for item in items:
        if isinstance(item, Message) and item.model:
            facts["model"] = item.model
        elif isinstance(item, Event):
            for kind, key, fact in (
                ("session_info", "name", "name"),
                ("model_change", "modelId", "model"),
            ):
                if item.kind == f"{NAME}.{kind}" and text_of(item.data, key):
                    facts[fact] = item.data[key]
    return facts
