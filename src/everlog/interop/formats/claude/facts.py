"""What a listing shows of a transcript, folded over its records.

The message count equals the number of messages that `read_tail` returns. Of several records with one
uuid the last counts; a listing knows the uuids of the last messages only.
"""

from __future__ import annotations

import re

import msgspec

from everlog.interop.formats.claude.records import (
    MESSAGE_TYPES,
    SYNTHETIC_MODEL,
    ConversationMessage,
    JsonObject,
    ListedMessage,
    ListedRecord,
    Record,
    is_api_error,
)
from everlog.interop.formats.claude.session_titles import TITLE_KEYS, Titles
from everlog.interop.formats.format_types import ListingScan, TailState
from everlog.interop.formats.jsonl import parse_object

_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]")
FOLDED_TYPES = MESSAGE_TYPES | TITLE_KEYS.keys()
_MAX_RECENT = 16  # records of a side chain that may get a child
_MAX_OPEN = 8  # side chains that go on at the same time
_MAX_COUNTED = 16  # records that may be repeated


class SideChains(msgspec.Struct, omit_defaults=True):
    """The conversations of subagents in the transcript that started them, as older versions wrote them.

    The records of one have an `agentId`, or form a chain of their own.
    """

    recent: dict[str, list[str]] = {}  # branch → its last records; the newest branch is the last
    branches: list[str] = []  # all ids so far

    def add(self, value: JsonObject) -> str:
        """Return the id of the branch that a record of a side chain belongs to."""
        branch = self._find(value)
        recent = self.recent.pop(branch, [])
        self.recent[branch] = [*recent[1 - _MAX_RECENT :], value["uuid"]]
        if len(self.recent) > _MAX_OPEN:
            del self.recent[next(iter(self.recent))]
        if branch not in self.branches:
            self.branches.append(branch)
        return branch

    def _find(self, value: JsonObject) -> str:
        agent, parent = value.get("agentId"), value.get("parentUuid")
        if isinstance(agent, str) and (name := _NOT_IN_ID.sub("", agent)):
            return f"agent-{name}"
        if isinstance(parent, str) and self.recent:
            branch = next((branch for branch, recent in self.recent.items() if parent in recent), "")
            if branch or not _is_prompt(value):  # the parent may be damaged
                return branch or next(reversed(self.recent))
        return f"agent-{_NOT_IN_ID.sub('', value['uuid']).replace('-', '')[:8]}"


def _is_prompt(value: JsonObject) -> bool:
    message = value.get("message")
    return value["type"] == "user" and isinstance(message, dict) and isinstance(message.get("content"), str)


class _State(msgspec.Struct, omit_defaults=True, rename={"is_subagent": "inner"}):
    titles: Titles = msgspec.field(default_factory=Titles)
    is_subagent: bool | None = None  # whether all messages so far are on a side chain; None: no message yet
    sides: SideChains = msgspec.field(default_factory=SideChains)
    counted: dict[str, int] = {}  # the messages in the last records, by uuid


class FactsFold:
    """The facts of a transcript, or of one side chain in it, after some of its records."""

    def __init__(self, stem: str, facts: ListingScan, state: TailState) -> None:
        try:
            self._state = msgspec.convert(state, _State)
        except msgspec.ValidationError:
            self._state = _State()
        self._stem = stem
        self._facts = facts
        self._created, self._last = facts.created, facts.last
        self._model, self._cwd = facts.model, facts.cwd
        self._session = facts.program_id or facts.parent
        self._messages = facts.messages

    @property
    def is_subagent(self) -> bool:
        """Whether this is the transcript of a subagent."""
        return self._state.is_subagent is True

    @property
    def is_settled(self) -> bool:
        """Whether records of types outside `FOLDED_TYPES` do not change the facts any more."""
        return bool(self._created and self._cwd) and self._session == self._stem

    @property
    def session_id(self) -> str:
        """The id that Claude Code gave the session; empty if unknown, or the transcript is a subagent's."""
        return "" if self.is_subagent else self._session

    @property
    def sides(self) -> SideChains:
        """The side chains so far."""
        return self._state.sides

    @property
    def state(self) -> TailState:
        """What is needed to continue, as JSON values."""
        counted = dict(list(self._state.counted.items())[-_MAX_COUNTED:])
        state: TailState = msgspec.to_builtins(msgspec.structs.replace(self._state, counted=counted))
        return state

    def add(self, record: ListedRecord | Record, source: bytes | JsonObject) -> None:
        """Add the next record; `source` is all of it, or its line."""
        kind, session, state = record.type, record.sessionId, self._state
        if not self._created and isinstance(record.timestamp, str):
            self._created = record.timestamp
        if not self._cwd and isinstance(record.cwd, str):
            self._cwd = record.cwd
        if session != self._session and isinstance(session, str) and (session == self._stem or not self._session):
            self._session = session  # the file may have another name, or begin with records of another session
        if kind in ("user", "assistant"):
            if isinstance(record.uuid, str):
                is_side = bool(record.isSidechain)
                if state.is_subagent is not is_side and (state.is_subagent is None or not is_side):
                    self._begin(is_side)
                if record.message is not None and (not is_side or state.is_subagent):
                    before = self._messages - state.counted.pop(record.uuid, 0)
                    self._messages = before
                    self._add_message(record, record.message, source)
                    state.counted[record.uuid] = self._messages - before
            if kind == "user" and not state.titles.prompt:
                state.titles.add(_value_of(source), is_subagent=state.is_subagent is True)
        elif isinstance(kind, str) and kind in TITLE_KEYS:
            state.titles.add(_value_of(source), is_subagent=state.is_subagent is True)

    def _begin(self, is_subagent: bool) -> None:
        """Begin with the first message, or again if those so far were another agent's."""
        if self._state.is_subagent:
            self._messages, self._last, self._model = 0, "", ""
            self._state.counted = {}
            self._state.titles.prompt = self._state.titles.command = ""
        self._state.is_subagent = is_subagent

    def _add_message(
        self, record: ListedRecord | Record, message: ListedMessage | ConversationMessage, source: bytes | JsonObject
    ) -> None:
        content, model = message.content, message.model
        if content is None or record.teamName or record.isCompactSummary:
            return
        if record.type == "assistant":
            if model == SYNTHETIC_MODEL or record.isApiErrorMessage:
                if is_api_error(_value_of(source)):
                    return
            elif isinstance(model, str):
                self._model = model or self._model
        if isinstance(content, str):
            self._messages += 1
        else:  # one for each result, and one for the remainder
            results = 0
            for block in content:
                if block.type == "tool_result":
                    results += 1
            self._messages += results + (results < len(content) or not content)
        if isinstance(record.timestamp, str):
            self._last = record.timestamp

    def result(self, branch: str = "") -> ListingScan:
        """Return the facts so far; `branch` is the side chain that they are about."""
        is_subagent, sides = self.is_subagent, self._state.sides
        return msgspec.structs.replace(
            self._facts,
            messages=self._messages,
            title=self._state.titles.best(),
            created=self._created,
            last=self._last,
            model=self._model,
            cwd=self._cwd,
            skip=is_subagent and not branch,
            program_id=self.session_id,
            parent=self._session if is_subagent else "",
            branches=() if is_subagent else tuple(sides.branches),
        )


def _value_of(source: bytes | JsonObject) -> JsonObject:
    return (parse_object(source)[0] or {}) if isinstance(source, bytes) else source
