"""The reader of PicoClaw's sessions: lines are messages, and a metadata file is about all of them.

PicoClaw may remove lines from the beginning of a transcript. So the id of a line is derived from its
content as PicoClaw would write it again, and from how often that was there before. A line with a
later time than all before it cannot have been there; only for others are the earlier lines read.

The metadata file changes independently of the lines:

    a summary              stands for the first `skip` lines
    `skip` without one     hides them; an item lists all hidden messages and replaces the previous
                           list, so that lines may also be shown again
    a removed summary      asks for the whole file: no native marker undoes a compaction

While the metadata file is missing or damaged, its last content stays in effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.format_types import (
    DamagedBytes,
    HiddenMessages,
    Item,
    Line,
    Summary,
    TailState,
    TranscriptInfo,
    derive_id,
)
from everlog.interop.formats.jsonl import (
    Row,
    as_text,
    attach_preserved,
    parse_lines,
    parse_object,
    preserved_data,
    record_event,
    report_damage,
    text_of,
    unreadable_event,
)
from everlog.interop.formats.picoclaw.go_json import TIME_PATTERN, encode_go_json
from everlog.interop.formats.picoclaw.lines import (
    NAME,
    count_lines,
    encode_message_line,
    encode_object,
    is_only_thinking,
    lowercase_keys,
    parse_message,
)
from everlog.interop.formats.picoclaw.messages import ROLES
from everlog.interop.formats.picoclaw.meta_file import find_fault, parse_meta, scope_agent, skip_count, valid_time
from everlog.interop.formats.plain_lines import decode_plain
from everlog.interop.formats.session_reader import Detail, NeedsWholeFileError, SessionReader
from everlog.model import Event, Image, Message

META_EVENT = f"{NAME}.meta"
MAX_TITLE = 60  # characters


class LineState(msgspec.Struct, omit_defaults=True):
    """The decoded tail state."""

    line_count: int = msgspec.field(default=0, name="raw")  # as PicoClaw counts
    newest_ms: int = msgspec.field(default=-1, name="newest")  # the latest time of a line
    # How many lines of that time have a content, by the beginning of its digest.
    newest: dict[str, int] = msgspec.field(default_factory=dict, name="now")
    # Digest of the last summary and the number of lines that it stands for.
    summary_digest: str | None = msgspec.field(default=None, name="summary")
    skip: int = 0
    hidden: int = 0  # messages up to this line are hidden
    mark_count: int = msgspec.field(default=0, name="marks")  # of summaries and hidings
    version: int = msgspec.field(default=0, name="v")  # 0: earlier ids were line numbers


class PicoClawReader(SessionReader):
    """The reader of one session."""

    def _load_state(self, state: TailState) -> None:
        self._lines = msgspec.convert(state, LineState)
        self._is_older_version = bool(state) and not self._lines.version
        self._lines.version = 1
        self._start = self._lines.line_count
        self._earlier: PicoClawReader | None = None
        self._ids: list[str] = []  # of the messages in the lines since then; empty: no message
        self._counts: Counter[str] = Counter()  # of contents, by digest
        self._meta = parse_meta(self.transcript.meta_bytes)
        modified = self.transcript.modified_ms
        created = valid_time(text_of(self._meta or {}, "created_at"))
        self._time = created or (timestamp(modified / 1000) if modified else "")

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        state: TailState = msgspec.to_builtins(self._lines) if self.detail else {}
        return state

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read further lines."""
        if self._is_older_version and self.detail and not self.whole:
            raise NeedsWholeFileError
        if not self.detail:
            self._scan(lines)
            return
        for row in parse_lines(lines, path):
            count = 1 if row.value is not None else count_lines(row.data)
            self._lines.line_count += count
            self.line_count += not row.is_blank
            item = self._read_row(row, path)
            self._ids += [item.id if isinstance(item, Message) else ""] * count
            if item is not None:
                yield item

    # --- lines

    def _scan(self, lines: Iterable[Line]) -> None:
        messages, title, model = self.facts.messages, self.facts.title, self.facts.model
        for line in lines:
            plain = decode_plain(line.data)
            # A message without text may have only thinking: it needs the full parse.
            if plain and plain.role in ROLES and plain.content.strip() and TIME_PATTERN.fullmatch(plain.created_at):
                messages, model = messages + 1, plain.model_name or model
                title = title or (shorten(plain.content) if plain.role == "user" else "")
            elif message := parse_message(lowercase_keys(parse_object(line.data)[0] or {}), "", ""):
                messages, model = messages + 1, message.model or model
                title = title or (title_of(message) if message.role == "user" else "")
        self.facts = replace(self.facts, messages=messages, title=title, model=model)

    def _read_row(self, row: Row, path: str) -> Message | Event | None:
        is_full = self.detail == Detail.FULL
        self.damage += report_damage((row,))
        if row.value is None:
            if not is_full:
                return None
            event = unreadable_event(NAME, self.transcript.session_id, row, path, self._time)
            return event if row.is_blank else replace(event, id=self._content_id("damaged ", row.data, None))
        value = lowercase_keys(row.value)
        message = parse_message(value, "", self._time)
        if message is None and not is_full:
            return None
        data = encode_object(value) if isinstance(value.get("role"), str) else row.data
        item_id = self._content_id("", data, epoch_ms(text_of(value, "created_at")))
        if message is None:
            kind = _event_kind(value)
            return record_event(row, f"{NAME}.{kind}", item_id, self._time, encode_go_json(row.value))
        message = replace(message, id=item_id)
        self._note_facts(message)
        if not is_full:
            return message
        preserved = preserved_data(row, is_lossless=encode_message_line(message) == row.data)
        return attach_preserved(message, NAME, preserved) if preserved else message

    def _content_id(self, seed: str, data: bytes, time_ms: int | None) -> str:
        digest, lines = seed + sha256(data).hexdigest(), self._lines
        self._counts[digest] += 1
        if time_ms is not None and time_ms > lines.newest_ms:
            lines.newest_ms, lines.newest = time_ms, {}
        if time_ms is not None and time_ms == lines.newest_ms:
            number = lines.newest[digest[:16]] = lines.newest.get(digest[:16], 0) + 1
        else:
            number = self._counts[digest] + (self._read_earlier()._counts[digest] if self._start else 0)
        return derive_id(self.transcript.session_id, f"{digest} {number}")

    def _note_facts(self, message: Message) -> None:
        facts = self.facts
        title = facts.title or (title_of(message) if message.role == "user" else "")
        self.facts = replace(facts, messages=facts.messages + 1, title=title, model=message.model or facts.model)

    def _read_earlier(self) -> PicoClawReader:
        """Read the lines before those of this reader again."""
        if self._earlier is None:
            if self.transcript.read_lines is None:
                raise NeedsWholeFileError
            self._earlier = read_lines(self.transcript, self._start)
            if len(self._earlier._ids) != self._start:
                raise NeedsWholeFileError  # it was rewritten meanwhile
        return self._earlier

    def message_ids(self) -> list[str]:
        """Return the id of the message in each line, as PicoClaw counts lines; empty: none."""
        return [*self._read_earlier()._ids, *self._ids] if self._start else self._ids

    # --- the metadata file

    def finish(self) -> Iterator[Item]:
        """Yield what the metadata file says."""
        meta = self._meta
        if meta is not None:
            self.facts = replace(
                self.facts,
                created=valid_time(text_of(meta, "created_at")),
                last=valid_time(text_of(meta, "updated_at")),
                key=text_of(meta, "key") or self.transcript.session_id,
                agent=scope_agent(meta),
                aliases=tuple(meta.get("aliases") or ()),
                scope=meta.get("scope") or None,
            )
        elif not self.facts.key:
            self.facts = replace(self.facts, key=self.transcript.session_id)
        if self.detail == Detail.FULL:
            yield from self._preserve_meta()
        if self.detail and (meta is not None or self.whole):
            yield from self._read_changes(meta or {})

    def _preserve_meta(self) -> Iterator[Event]:
        """Yield the event that preserves the metadata file, and report damage in it."""
        data, name = self.transcript.meta_bytes, self.transcript.session_id
        path = f"{self.transcript.stem}.meta.json"
        if data is None:
            self.damage.insert(0, DamagedBytes(path, 0, 0, "missing: rebuilt from the messages"))
            return
        value, problem, is_exact = parse_object(data)
        fault = problem if value is None else find_fault(value)
        event_id = derive_id(name, f"meta {sha256(data).hexdigest()}")
        if fault or value is None:
            preserved = {"path": path, "start": 0, **as_text(data)}
            yield Event(id=event_id, kind=f"{NAME}.damaged", data=preserved, timestamp=self._time)
            problem = f"{fault}: rebuilt from the messages"
        else:
            event = Event(id=event_id, kind=META_EVENT, data=value, timestamp=self._time)
            is_lossless = is_exact and encode_go_json(value, 2) == data
            yield event if is_lossless else attach_preserved(event, NAME, as_text(data, "line"))
        if problem:
            self.damage.insert(0, DamagedBytes(path, 0, len(data), problem))

    def _read_changes(self, meta: Mapping[str, Any]) -> Iterator[Item]:
        """Yield items for a changed summary or `skip`."""
        lines, is_full = self._lines, self.detail == Detail.FULL
        time, text = valid_time(text_of(meta, "updated_at")) or self._time, text_of(meta, "summary")
        skip = min(skip_count(meta), lines.line_count)  # `skip` may include lines still to come
        if lines.summary_digest and not text:
            raise NeedsWholeFileError
        hidden = 0 if text else skip
        digest = sha256(text.encode()).hexdigest()[:32]
        if hidden != lines.hidden or (self.whole and not is_full):
            ids = tuple(filter(None, self.message_ids()[:hidden] if hidden else ()))
            yield HiddenMessages(id=self._mark_id(f"skip {' '.join(ids)}"), ids=ids, timestamp=time)
            lines.hidden = hidden
        if text and (lines.summary_digest, lines.skip) != (digest, skip):
            later = self._ids[skip - self._start :] if skip >= self._start else self.message_ids()[skip:]
            first = next(filter(None, later), None)
            yield Summary(
                id=self._mark_id(f"summary {first} {text}"),
                text=text,
                first_kept=first,
                strategy="structured",  # which wrapper it has in a context
                timestamp=time,
                extra={NAME: {}} if is_full else {},
            )
            lines.summary_digest, lines.skip = digest, skip

    def _mark_id(self, seed: str) -> str:
        self._lines.mark_count += not self.whole
        number = f" {self._lines.mark_count}" if self._lines.mark_count > 1 else ""
        return derive_id(self.transcript.session_id, f"{seed}{number}")


def read_lines(transcript: TranscriptInfo, count: int) -> PicoClawReader:
    """Return a reader that has read the first lines of a transcript, as PicoClaw counts them."""
    reader = PicoClawReader(transcript, whole=True)
    for line in transcript.read_lines() if transcript.read_lines else ():
        if len(reader._ids) >= count:
            break
        for _ in reader.feed((line,)):
            pass
    return reader


def _event_kind(value: Mapping[str, Any]) -> str:
    if value.get("role") == "system":
        return "system"
    return "thought" if is_only_thinking(value) else "record"


def title_of(message: Message) -> str:
    """Return the title of a session with this first message, as in PicoClaw's own list."""
    has_image = any(isinstance(block, Image) for block in message.content)
    return shorten(message.text) or ("[image]" if has_image else "")


def shorten(text: str) -> str:
    """Shorten a text to a title."""
    text = text.strip()
    return text if len(text) <= MAX_TITLE else f"{text[:MAX_TITLE]}..."
