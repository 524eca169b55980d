"""The one reader of Codex's rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.codex.blocks import (
    NAME,
    blocks,
    summary_text,
    thinking,
    tool_call,
    tool_output,
    usage_of,
    user_content,
)
from everlog.interop.formats.format_types import (
    DamagedBytes,
    HiddenMessages,
    Item,
    Line,
    Summary,
    TailState,
    derive_id,
    extra_field,
    split_lines,
)
from everlog.interop.formats.jsonl import Row, attach_preserved, parse_object, parse_records, report_damage, text_of
from everlog.interop.formats.session_reader import Detail, NeedsWholeFileError, SessionReader
from everlog.model import PROGRAM, AnyBlock, Event, Message, Role, Text

MAX_TITLE = 200  # characters
_BARE_TYPES = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "local_shell_call",
        "custom_tool_call",
        "custom_tool_call_output",
        "web_search_call",
    }
)
# How lines begin that a listing does not need: most of a rollout.
_UNLISTED = (b'"type":"event_msg"', b'"type":"world_state"', b'"type":"token_usage_record"', b'"type":"compacted"')


class _State(msgspec.Struct, omit_defaults=True):
    """What the lines so far say about the lines to come."""

    id: str = ""  # of the thread
    id_base: str = ""  # what the ids of items are derived from
    parent: str = ""
    preview: str = ""  # the first thing that the user said
    model: str | None = None
    cwd: str | None = None
    first_cwd: str = ""
    timestamp: str = ""
    tool_names: dict[str, str] = {}  # of calls without a result
    has_usage_records: bool = False
    last_total: Any = None  # the last token total reported


class CodexReader(SessionReader):
    """Reads a rollout, and what it continues of other rollouts."""

    continued: tuple[str, ...] = ()  # ids of the rollouts that continue this one

    def _load_state(self, state: TailState) -> None:
        self._state = msgspec.convert(state, _State)
        self._items: list[Item] = []  # of the lines fed together
        self._own_start = 0  # how many of them are of a rollout that this one continues
        self._turns: list[list[str]] = [[]]  # ids of live messages, from each prompt to the next one

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        state: TailState = msgspec.to_builtins(self._state)
        return state

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read lines and yield their items, together: the usage of an answer is in a later line."""
        self._items, self._own_start = [], 0
        if self.detail is Detail.LISTING:
            lines = (line for line in lines if not any(kind in line.data[:120] for kind in _UNLISTED))
        for row in parse_records(lines, path):
            self.line_count += row.starts_line
            self.damage += report_damage([row])
            self._read_row(row)
        times = [item.timestamp for item in self._items if isinstance(item, Message)]
        self.facts = replace(
            self.facts,
            messages=self.facts.messages + len(times),
            last=times[-1] if times else self.facts.last,
            model=self._state.model or "",
            cwd=self._state.first_cwd,
            program_id=self._state.id,
            parent=self._state.parent,
        )
        yield from self._items

    def finish(self) -> Iterator[Item]:
        """Set the title: a thread's name is beside the rollout, and may be newer than its lines."""
        self.facts = replace(self.facts, title=self._thread_name() or self._state.preview)
        return iter(())

    def _thread_name(self) -> str:
        """Return the last name that the index of threads has for this one."""
        thread_id = self._state.id or self.transcript.session_id
        for line in reversed((self.transcript.ancestor_file or b"").split(b"\n")):
            if thread_id.encode() in line:
                entry = parse_object(line)[0] or {}
                if entry.get("id") == thread_id:
                    return text_of(entry, "thread_name").strip()
        return ""

    # --- lines ------------------------------------------------------------------------------

    def _read_row(self, row: Row) -> None:
        state, value = self._state, row.value
        if value is None:
            self._add_event(row, f"{row.start}+{row.end - row.start}", "damaged", row.event_data)
            return
        kind, payload = unwrap(value)
        if timestamp := text_of(value, "timestamp"):
            state.timestamp = timestamp
            if not self.facts.created:
                self.facts = replace(self.facts, created=timestamp)
        count = len(self._items)
        if kind == "response_item":
            self._read_response_item(row, payload, value)
        elif kind == "session_meta":
            self._read_session_meta(row, payload)
        elif kind == "turn_context":
            state.cwd = text_of(payload, "cwd") or state.cwd
            state.first_cwd = state.first_cwd or state.cwd or ""
            state.model = text_of(payload, "model") or state.model
        elif kind == "compacted":
            if text := summary_text(payload):
                item_id, extra = self._derive_id(row.start), {NAME: value} if self.detail is Detail.FULL else {}
                self._items.append(Summary(id=item_id, text=text, timestamp=state.timestamp, extra=extra))
        elif kind == "token_usage_record":
            state.has_usage_records = True
            self._set_usage(payload.get("usage"))
        elif kind == "event_msg":
            self._read_event(row, payload, value)
        inner = payload.get("type")
        if len(self._items) == count or kind == "session_meta":
            is_nested = isinstance(inner, str) and inner != kind
            self._add_event(row, row.start, f"{kind}.{inner}" if is_nested else kind, value)

    def _derive_id(self, position: str | int) -> str:
        return derive_id(self._state.id_base or self.transcript.session_id, position)

    def _add_event(self, row: Row, position: str | int, kind: str, data: dict[str, Any]) -> None:
        if self.detail is Detail.FULL:
            event_id, time = self._derive_id(position), self._state.timestamp
            self._items.append(Event(id=event_id, kind=f"{NAME}.{kind}", data=data, timestamp=time))

    def _read_session_meta(self, row: Row, payload: dict[str, Any]) -> None:
        """Note what a thread is; older forks have the first line of the copied thread as well."""
        state = self._state
        if state.id_base:
            return
        state.id = text_of(payload, "id")
        base = payload.get("history_base")
        has_base = isinstance(base, dict)
        # A reverted thread keeps its id and begins a file of its own.
        started = f" {payload.get('timestamp')}" if has_base else ""
        state.id_base = f"{state.id or self.transcript.session_id}{started}"
        state.parent = text_of(payload, "parent_thread_id") or text_of(payload, "forked_from_id")
        state.cwd = text_of(payload, "cwd") or None
        state.first_cwd = state.cwd or ""
        if isinstance(base, dict):
            self._read_base(row, base)

    def _read_base(self, row: Row, base: dict[str, Any]) -> None:
        """Add the messages of another rollout that this one continues.

        Those that a revert took back are added too, and hidden, so that the thread is one session
        with its file from before.
        """
        rollout_id, end = text_of(base, "thread_id"), base.get("end_byte_offset")
        is_own = not rollout_id or self.transcript.stem.endswith(rollout_id) or rollout_id in self.continued
        data = None if is_own else self.transcript.read_related(f"{rollout_id}.jsonl")
        if data is None:
            problem = f"the beginning of this thread is missing: it is in the rollout {rollout_id}"
            self.damage.append(DamagedBytes(row.path, row.start, row.end, problem))
            return
        reader = CodexReader(self.transcript._replace(session_id=rollout_id), whole=True)
        reader.continued = (*self.continued, rollout_id)
        lines = list(split_lines(data))
        count = len(lines) if not isinstance(end, int) else sum(line.start < end for line in lines)
        base_items = list(reader.feed(lines[:count]))
        state, other = self._state, reader._state
        state.preview, state.model, state.tool_names = other.preview, other.model, dict(other.tool_names)
        self._turns = [list(turn) for turn in reader._turns]
        reverted: list[Item] = []
        before = len(self._items)
        if other.id == state.id:
            reverted = [item for item in reader.feed(lines[count:]) if isinstance(item, Message)]
        for item in (*base_items, *reverted):
            if isinstance(item, Message):  # its usage is counted in its own rollout
                mark = extra_field(item, NAME) or {"inherited": rollout_id}
                item = attach_preserved(replace(item, usage=None, line=b""), NAME, mark)
            self._items.append(item)
        if reverted:
            ids, extra = tuple(item.id for item in reverted), {NAME: {"history_base": base}}
            hidden_id = self._derive_id("history base")
            self._items.append(HiddenMessages(id=hidden_id, ids=ids, timestamp=state.timestamp, extra=extra))
        if self.detail is Detail.FULL:
            self.line_count += len(self._items) - before
        self._own_start = len(self._items)

    # --- response items ---------------------------------------------------------------------

    def _read_response_item(self, row: Row, payload: dict[str, Any], value: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        details = value.get("metadata")
        if isinstance(details, dict) and details.get("compaction_output") is True:
            return  # the summary, which follows
        if kind == "message":
            self._read_message(row, payload)
        elif kind == "reasoning":
            if thought := thinking(payload):
                self._add_answer(row, payload, (thought,), ("summary", "encrypted_content"))
        elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
            if call := tool_call(payload):
                self._state.tool_names[call.id] = call.name
                self._add_answer(row, payload, (call,), ("name", "arguments", "input", "action", "call_id"))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call_id = payload.get("call_id")
            if isinstance(call_id, str):
                content, is_error = tool_output(payload.get("output"))
                tool_name = self._state.tool_names.pop(call_id, None)
                result = self._message(row.start, "toolResult", content)
                result = replace(result, tool_call_id=call_id, tool_name=tool_name, is_error=is_error)
                self._add_message(result, payload, ("call_id",))

    def _read_message(self, row: Row, payload: dict[str, Any]) -> None:
        content, role = payload.get("content"), payload.get("role")
        if not isinstance(content, list | str):
            return
        if role == "assistant":
            self._add_answer(row, payload, blocks(content), ("role", "content"))
        elif role in ("user", "developer", "system"):
            context, words, is_whole = user_content(payload)
            mapped = ("role", "content") if is_whole and role == "user" else ()
            if context or not words:
                position = f"{row.start} context" if words else row.start
                addition = replace(self._message(position, "user", context), sender=PROGRAM)
                self._add_message(addition, payload, ("role", "content") if words else mapped, is_turn=bool(words))
            if words:
                title = " ".join(" ".join(block.text for block in words if isinstance(block, Text)).split())
                self._state.preview = self._state.preview or title[:MAX_TITLE]
                prompt = replace(self._message(row.start, "user", words), sender="user")
                self._add_message(prompt, payload, mapped, is_turn=not context)

    def _message(self, position: str | int, role: Role, content: tuple[AnyBlock, ...]) -> Message:
        state = self._state
        return Message(
            id=self._derive_id(position), role=role, content=content, cwd=state.cwd, timestamp=state.timestamp
        )

    def _add_answer(
        self, row: Row, payload: Mapping[str, Any], content: tuple[AnyBlock, ...], mapped: Sequence[str]
    ) -> None:
        answer = replace(self._message(row.start, "assistant", content), model=self._state.model)
        self._add_message(answer, payload, mapped)

    def _add_message(
        self, message: Message, payload: Mapping[str, Any], mapped: Sequence[str], *, is_turn: bool = False
    ) -> None:
        """Add a message, with what its payload has besides; with `is_turn`, the user's turn begins."""
        if self.detail is Detail.FULL:
            rest = {key: value for key, value in payload.items() if key not in mapped}
            message = attach_preserved(message, NAME, rest)
        self._items.append(message)
        if is_turn:
            self._turns.append([])
        self._turns[-1].append(message.id)

    # --- event messages ---------------------------------------------------------------------

    def _read_event(self, row: Row, payload: Mapping[str, Any], value: dict[str, Any]) -> None:
        kind = payload.get("type")
        if kind == "token_count" and not self._state.has_usage_records:
            info = payload.get("info")
            # Codex may report the same total repeatedly.
            if isinstance(info, dict) and info.get("total_token_usage") != self._state.last_total:
                self._state.last_total = info.get("total_token_usage")
                self._set_usage(info.get("last_token_usage"))
        elif kind == "thread_rolled_back":
            self._roll_back(row, payload.get("num_turns"), value)

    def _set_usage(self, raw_usage: Any) -> None:
        """Set the usage of the last answer, unless that was read and returned before."""
        if not isinstance(raw_usage, dict):
            return
        for index in range(len(self._items) - 1, self._own_start - 1, -1):
            item = self._items[index]
            if isinstance(item, Message) and item.role != "toolResult":
                if item.role == "assistant" and item.usage is None:
                    preserved = extra_field(item, NAME)
                    item = replace(item, usage=usage_of(raw_usage), line=b"")
                    self._items[index] = item if preserved is None else attach_preserved(item, NAME, preserved)
                return

    def _roll_back(self, row: Row, count: Any, value: dict[str, Any]) -> None:
        """Hide what was said since the user's last messages."""
        if not isinstance(count, int) or count < 1 or self.detail is Detail.LISTING:
            return
        if not self.whole:
            raise NeedsWholeFileError
        first = max(len(self._turns) - count, 1)
        ids = tuple(item_id for turn in self._turns[first:] for item_id in turn)
        del self._turns[first:]
        if ids:
            marker_id, time = self._derive_id(row.start), self._state.timestamp
            self._items.append(HiddenMessages(id=marker_id, ids=ids, timestamp=time, extra={NAME: value}))


def unwrap(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the type and the payload of a line."""
    kind, payload = value.get("type"), value.get("payload")
    if isinstance(kind, str) and isinstance(payload, dict):
        return kind, payload
    if isinstance(kind, str):
        return ("response_item" if kind in _BARE_TYPES else kind), value
    return ("session_meta" if "id" in value else "state"), value
