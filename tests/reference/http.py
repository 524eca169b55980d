"""`docs/http.md`: every route and type, from the daemon's own OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from everlog.app import open_runtime
from everlog.daemon.event_stream import EventStream
from everlog.daemon.http_app import build_app
from everlog.daemon.listing_events import ListingWatcher
from everlog.daemon.request_limits import RateLimiter
from everlog.wire import events
from everlog.wire.requests import STREAM_REQUESTS

INTRODUCTION = """\
# The HTTP API

Made by `make docs` from the OpenAPI document that the daemon serves at `/docs/openapi.json`; a test holds the two
together. Who gets in, the statuses, and the WebSocket are in [daemon.md](daemon.md); `everlog.client.Client` has a
method for each route.

An `{id}` is a session's id, its key or an alias, percent-encoded as one segment. Bodies and answers are JSON in camelCase; a `?` marks what may be left out. Records (messages, markers) are
as in [the file](format.md), without their crc.
"""

STREAM = """\
JSON objects on the WebSocket `/ws`, each with its `type`. How they follow each other is in
[daemon.md](daemon.md#the-websocket).
"""

TAGS = ("sessions", "talk", "memory", "usage", "cron", "daemon")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
UNLIMITED = 2**53 - 1  # the largest number that JSON surely holds

Schema = dict[str, Any]


def page() -> str:
    """The whole page."""
    document = asyncio.run(_document())
    parts = [INTRODUCTION, *_routes(document), *_stream(), *_types(document["components"])]
    return "\n".join(parts) + "\n"


async def _document() -> Schema:
    runtime = open_runtime("memory:")
    try:
        live = EventStream(runtime, RateLimiter(lambda: 1.0), ListingWatcher(runtime))
        return build_app(runtime, lambda: "", live).openapi_schema.to_schema()
    finally:
        await runtime.store.close()


def _routes(document: Schema) -> Iterator[str]:
    operations = sorted(
        (
            (method.upper(), _shown(path), operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ),
        key=lambda one: (one[1], METHODS.index(one[0])),
    )
    found = {one["tags"][0] for _, _, one in operations}
    for tag in (*TAGS, *sorted(found.difference(TAGS))):
        yield f"## {tag.capitalize()}\n"
        for method, path, operation in operations:
            if operation["tags"][0] == tag:
                yield from _route(method, path, operation)


def _route(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"### `{method} {path}`\n"
    yield " ".join(operation["description"].split("\n\n")[0].split())
    for paragraph in operation["description"].split("\n\n")[1:]:
        yield f"\n{' '.join(paragraph.split())}"
    yield ""
    query = [one for one in operation.get("parameters", ()) if one["in"] == "query"]
    if query:
        yield "| query | type | default |"
        yield "| --- | --- | --- |"
        yield from (_parameter(one) for one in query)
        yield ""
    if body := operation.get("requestBody"):
        yield f"Asks: {_type(_content(body))}\n"
    for status, response in sorted(operation["responses"].items()):
        if status < "300":
            told = _type(_content(response)) if "content" in response else "nothing"
            yield f"Answers {status}: {told or 'HTML'}\n"


def _parameter(one: Schema) -> str:
    schema = one["schema"]
    kind = _type(schema).removesuffix(" or null")
    if schema.get("maximum", UNLIMITED) < UNLIMITED:
        kind += f", {schema.get('minimum', 0):.0f} to {schema['maximum']:.0f}"
    if one["required"]:
        default = "required"
    else:
        default = "" if schema.get("default") is None else f"`{_json(schema['default'])}`"
    return f"| `{one['name']}` | {kind} | {default} |"


def _stream() -> Iterator[str]:
    yield f"## The event stream\n\n{STREAM}"
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.RunEvent)]
    sent = [kind for kind in kinds if kind not in (events.RunEvent, events.StreamNotice)]
    for title, structs in (("A client sends", STREAM_REQUESTS.values()), ("It is sent", sent)):
        yield f"| {title} | fields | meaning |"
        yield "| --- | --- | --- |"
        for struct in structs:
            names = [f"`{field.encode_name}{_mark(struct, field)}`" for field in msgspec.structs.fields(struct)]
            brief = (struct.__doc__ or "").partition("\n")[0]
            yield f"| `{struct.__struct_config__.tag}` | {', '.join(names)} | {brief} |"
        yield ""


def _mark(struct: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> str:
    """A `?` for what may be left out; an event leaves out only what is unset."""
    optional = field.default is msgspec.UNSET if issubclass(struct, events.RunEvent) else not field.required
    return "?" if optional else ""


def _types(components: Schema) -> Iterator[str]:
    yield "## Types\n"
    for name, schema in sorted(components["schemas"].items()):
        yield f"### {name}\n"
        required = schema.get("required", ())
        yield "| field | type | default |"
        yield "| --- | --- | --- |"
        for field, kind in schema.get("properties", {}).items():
            default = kind.get("default")
            shown = "" if field in required or default is None else f"`{_json(default)}`"
            optional = "" if field in required else "?"
            yield f"| `{field}{optional}` | {_type(kind)} | {shown} |"
        yield ""


def _content(what: Schema) -> Schema:
    found: Schema = next(iter(what["content"].values()))["schema"]
    return found


def _type(schema: Schema) -> str:
    """A type in a few words."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{_json(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{_json(one)}`" for one in schema["enum"])
    if kinds := schema.get("oneOf") or schema.get("anyOf"):
        return _joined(_type(one) for one in kinds)
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return _joined(kind)
    if kind == "array":
        items = schema.get("items")
        return f"list of {_type(items)}" if items else "list"
    return str(kind)


def _joined(kinds: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(kinds))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shown(path: str) -> str:
    for name in ("session_id", "job"):
        path = path.replace(f"{{{name}}}", "{id}")
    return path
