"""A session as a transcript that Claude Code resumes.

What came from such a transcript goes back as it was, line for line. What was said since becomes
new records at the end of the chain, and what was taken back since is left out, with the links
that led over it drawn together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.interop.formats.claude.blocks import Result, give, saved_as, take
from everlog.interop.formats.claude.chain import SAID, Conversation, converse, is_chain
from everlog.interop.formats.claude.entry_builder import NewRecords, is_uuid, start_after
from everlog.interop.formats.claude.session_titles import title
from everlog.interop.formats.format_types import Written, kept, made_id
from everlog.interop.formats.jsonl import as_bytes, parse
from everlog.log.fold import fold
from everlog.log.tool_pairs import Pairs, closing, pair
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata, Rewind, ToolCall

NAME = "claude"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """The transcript of a session; not those of the agents that it asked."""
    return _Writing(metadata, records).written()


class _Origin:
    """A line that a record came from."""

    def __init__(self, value: dict[str, Any] | None, raw: bytes | None = None) -> None:
        self.value = value
        self.raw = raw
        self.items: list[Message] = []  # what was read from it

    @property
    def uuid(self) -> str | None:
        return self.value["uuid"] if self.value is not None and is_chain(self.value) else None


class _Writing:
    def __init__(self, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self.metadata = metadata
        self.records = records
        self.origins: dict[int, _Origin] = {}  # place in `records` → the line it stands for
        self.parts: set[int] = set()  # places of records whose line another one stands for
        self._find_origins()
        self.values = [one.value for one in self.origins.values() if one.value is not None]
        self.talk: Conversation = converse(value for value in self.values if is_chain(value))
        self.live = fold(records).messages
        self.seqs = {message.seq for message in self.live}
        self.theirs = {item.seq for one in self.origins.values() for item in one.items}
        self.pairs: Pairs = pair(self.live)
        self.results: dict[int, list[int]] = {}  # place of a message → those of its results
        for result in sorted(self.pairs.caller):
            self.results.setdefault(self.pairs.caller[result], []).append(result)
        self.unanswered: dict[int, list[ToolCall]] = {}
        for at, call in self.pairs.open:
            self.unanswered.setdefault(at, []).append(call)
        self.places = {message.seq: place for place, message in enumerate(self.live)}
        self.standing = _standing(records)
        self.fallen = self._find_fallen()
        self.gone: dict[str, str | None] = {}  # uuid that is left out → its parent
        self.uuids: dict[int, str] = {}  # seq → uuid of its record
        session = _session(metadata, self.values)
        self.new = NewRecords(metadata, start_after(metadata, self.values, session))
        self.lines: list[bytes] = []
        self.files: dict[str, bytes] = {}
        self.lost: Counter[str] = Counter()
        self.written_behind: set[int] = set()  # seqs of results that stand behind their call
        self.open: list[tuple[Message, ToolCall]] = []  # calls that wait for a result
        self.response: object = None  # of theirs, the one that they are of

    # --- what came from there ---------------------------------------------------------------

    def _find_origins(self) -> None:
        firsts: dict[str, _Origin] = {}
        for place, record in enumerate(self.records):
            origin = _origin(record)
            if origin is not None:
                self.origins[place] = origin
                if isinstance(record, Message):
                    origin.items.append(record)
                    firsts[record.id] = origin
            elif isinstance(record, Message) and b'"claude":{"of":' in record.line:
                first = firsts.get(kept(record, NAME)["of"])
                if first is not None:
                    first.items.append(record)
                    self.parts.add(place)
        for origin in self.origins.values():
            if origin.items and origin.value is not None:
                _fill(origin.value, origin.items)

    def _write_origin(self, origin: _Origin, record: AnyRecord) -> None:
        value, uuid = origin.value, origin.uuid
        if value is None:
            self.lines.append(origin.raw or b"")
            return
        if self._is_left_out(origin, record) and uuid is not None:
            above = value.get("parentUuid") or value.get("logicalParentUuid")
            self.gone[uuid] = above if isinstance(above, str) else None
            return
        changed = self._without_dead(self._relinked(value), origin)
        same = changed is value and origin.raw is not None
        self.lines.append(origin.raw or b"" if same else _encode(changed))
        for item in origin.items:
            self.uuids[item.seq] = uuid or ""
            self._save_text(value, item)
        if uuid is not None and value["type"] in SAID and uuid in self.talk.shown:
            self.new.leaf = uuid
            self._note_open(value, origin.items)
        elif any(item.seq in self.seqs for item in origin.items):
            self.lost["messages of a branch that was left, which are shown again here"] += 1

    def _note_open(self, value: Mapping[str, Any], items: Sequence[Message]) -> None:
        """Remember the calls of the last response that nobody answered."""
        if all(item.role == "toolResult" for item in items):
            return
        response = value["message"].get("id") if value["type"] == "assistant" else None
        if response is None or response != self.response:
            self.open = []
        self.response = response
        for item in items:
            calls = self.unanswered.get(self.places.get(item.seq, -1), ())
            self.open += [(item, call) for call in calls]

    def _is_left_out(self, origin: _Origin, record: AnyRecord) -> bool:
        """Whether we took it out of the conversation. What they left themselves is kept."""
        if isinstance(record, Compaction):
            return record.seq not in self.standing
        if origin.uuid in self.fallen:
            return True
        if not origin.items or origin.uuid not in self.talk.shown:
            return False
        return not any(item.seq in self.seqs for item in origin.items)

    def _find_fallen(self) -> set[str]:
        """The boundaries of summaries that a rewind went behind."""
        fallen: set[str] = set()
        for place, origin in self.origins.items():
            record, above = self.records[place], (origin.value or {}).get("parentUuid")
            if isinstance(record, Compaction) and record.seq not in self.standing:
                fallen |= {above} if isinstance(above, str) else set()
        return fallen

    def _relinked(self, value: dict[str, Any]) -> dict[str, Any]:
        """A record whose links lead to no record that is left out."""
        for key in ("parentUuid", "logicalParentUuid"):
            above = value.get(key)
            if isinstance(above, str) and above in self.gone:
                value = {**value, key: self._above(above)}
        return value

    def _above(self, uuid: str) -> str | None:
        seen: set[str] = set()
        here: str | None = uuid
        while here is not None and here in self.gone and here not in seen:
            seen.add(here)
            here = self.gone[here]
        return here

    def _without_dead(self, value: dict[str, Any], origin: _Origin) -> dict[str, Any]:
        """A record of several results without those that were taken out."""
        dead = [item for item in origin.items if item.seq not in self.seqs]
        if not dead or origin.uuid not in self.talk.shown:
            return value
        calls = {item.tool_call_id for item in dead if item.role == "toolResult"}
        said = any(item.role != "toolResult" for item in dead)
        content = value["message"]["content"]
        left = [
            block
            for block in content
            if not (
                block.get("tool_use_id") in calls
                if isinstance(block, dict) and block.get("type") == "tool_result"
                else said
            )
        ]
        return {**value, "message": {**value["message"], "content": left}}

    def _save_text(self, value: Mapping[str, Any], item: Message) -> None:
        """The file of a large result, if we have its text."""
        content = value["message"]["content"]
        if item.role != "toolResult" or isinstance(content, str):
            return
        for result in take(content, lambda _: None).results:
            preview = "\n".join(getattr(block, "text", "") for block in result.content)
            name = saved_as(preview) if result.call == item.tool_call_id else None
            if name and item.text != preview:
                path = f"{self.new.session}/tool-results/{name}"
                self.files[path] = item.text.encode("utf-8", "replace")

    # --- what was said since ----------------------------------------------------------------

    def _write_new(self, message: Message) -> None:
        if message.seq not in self.seqs or message.seq in self.written_behind:
            return
        place = self.places[message.seq]
        if message.role == "toolResult":
            if place not in self.pairs.caller:
                self.lost["results of calls that were never logged"] += 1
                return
            caller = self.live[self.pairs.caller[place]]
            self._add(message, self.uuids.get(caller.seq))
            return
        self._close_open()
        self._add(message, None)
        for result in self.results.get(place, ()):
            if self.live[result].seq not in self.theirs:
                self.written_behind.add(self.live[result].seq)
                self._add(self.live[result], self.uuids.get(message.seq))
        self.open = [(message, call) for call in self.unanswered.get(place, ())]
        self._close_open()

    def _close_open(self) -> None:
        """Answer the calls that nobody answered: a conversation cannot go on behind them."""
        for message, call in self.open:
            self._add(closing(call), self.uuids.get(message.seq), f"{message.id} {call.id}")
        self.open = []

    def _add(self, message: Message, caller: str | None, place: str | None = None) -> None:
        made = self.new.message(message, caller, place or message.seq, self.lost)
        if made is not None:
            self.lines.append(_encode(made))
            if message.seq:
                self.uuids[message.seq] = made["uuid"]

    def _write_compaction(self, record: Compaction) -> None:
        if record.seq not in self.standing:
            return
        self._close_open()
        kept_seqs = [m.seq for m in self.live if record.first_kept_seq <= m.seq < record.seq]
        uuids = [self.uuids[seq] for seq in kept_seqs if self.uuids.get(seq)]
        for made in self.new.compaction(record, list(dict.fromkeys(uuids)), record.seq):
            self.lines.append(_encode(made))

    # --- all of it --------------------------------------------------------------------------

    def written(self) -> Written:
        """The files, and what they cannot hold."""
        for place, record in enumerate(self.records):
            if place in self.origins:
                self._write_origin(self.origins[place], record)
            elif place in self.parts:
                continue
            elif isinstance(record, Message):
                self._write_new(record)
            elif isinstance(record, Compaction):
                self._write_compaction(record)
            elif isinstance(record, Event):
                self.lost[f"events of the kind {record.kind}"] += 1
            elif record.record_type not in ("meta", "tombstone", "rewind"):
                self.lost[f"records of the kind {record.record_type}"] += 1
        name = (self.metadata.name or "").strip()
        if name and name != title(self.values, inner=self.talk.inner):
            self.lines.append(_encode(self.new.title(name)))
        files = {self.new.path: b"".join(line + b"\n" for line in self.lines), **self.files}
        lost = tuple(f"{count} {what}" for what, count in sorted(self.lost.items()))
        return Written(files, lost)


def _origin(record: AnyRecord) -> _Origin | None:
    """The line that a record stands for; None if it came from elsewhere."""
    keep = kept(record, NAME) if b'"claude":{' in record.line else None
    if isinstance(record, Event):
        if not record.kind.startswith("claude."):
            return None
        if isinstance(keep, dict) and keep.get("damaged") is True:
            return _Origin(None, as_bytes(record.data))
        raw = keep.get("raw") if isinstance(keep, dict) else None
        return _Origin(record.data, as_bytes(raw) if isinstance(raw, dict) else None)
    if not isinstance(keep, dict) or not isinstance(record, Message | Compaction):
        return None
    if isinstance(keep.get("raw"), dict) and "type" not in keep:
        raw = as_bytes(keep["raw"]) or b""
        return _Origin(parse(raw)[0], raw)
    return _Origin(keep) if "of" not in keep or "type" in keep else None


def _fill(value: dict[str, Any], items: Sequence[Message]) -> None:
    """Put the content back that was left out because our blocks say the same."""
    message = value.get("message")
    if not isinstance(message, dict):
        return
    if message.get("content") == "":
        message["content"] = items[-1].text
    elif message.get("content", "") is None:
        results = [
            Result(item.tool_call_id or "", item.content, item.is_error)
            for item in items
            if item.role == "toolResult"
        ]
        said = [block for item in items if item.role != "toolResult" for block in item.content]
        message["content"] = give(results, said)


def _standing(records: Sequence[AnyRecord]) -> set[int]:
    """The seqs of compactions that no rewind went behind."""
    standing: list[Compaction] = []
    for record in records:
        if isinstance(record, Compaction):
            standing.append(record)
        elif isinstance(record, Rewind):
            standing = [one for one in standing if record.to_seq >= one.first_kept_seq - 1]
    return {one.seq for one in standing}


def _session(metadata: Metadata, values: Sequence[Mapping[str, Any]]) -> str:
    """The id of the session there: the one it had, else ours if it is a UUID, else made of it."""
    named = [name.removeprefix("claude:") for name in metadata.names if name.startswith("claude:")]
    told = [value.get("sessionId") for value in reversed(values)]
    for one in (*named, *told, metadata.id):
        if isinstance(one, str) and is_uuid(one):
            return one
    return made_id(NAME, metadata.id)
