"""Fast decoding of lines in the chat completions form, as most of PicoClaw's and CrabTalk's are."""

from __future__ import annotations

import msgspec


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str = ""
    arguments: str = ""


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    function: _Function
    id: str = ""
    type: str = ""


class PlainLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message whose fields all have the usual types."""

    role: str
    content: str = ""
    created_at: str = ""
    model_name: str = ""
    reasoning_content: str = ""
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[_Call, ...] = ()


_decode = msgspec.json.Decoder(PlainLine).decode


def decode_plain(data: bytes) -> PlainLine | None:
    """Decode a line; None if it has another form."""
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        return None
