"""The end of a conversation: as much of it as must be known for the conversation to go on.

A record continues it if it hangs from the last response: from one of its records, from a result
of its calls, or from what stands beside these and is not displayed. Then everything before stays
as it is, and whatever was said is shown. Of any other nobody can tell without the whole file.
"""

from __future__ import annotations

import msgspec

from everlog.interop.formats.claude.chain import SAID, Object, block_ids, preserved, response_of
from everlog.interop.formats.claude.entry_builder import boundary_uuid
from everlog.interop.formats.claude.messages import Counted, count, tokens_before, tools_of
from everlog.model import Usage

# Notes are written often. From older records than these hardly anything hangs.
_MOST = 128
_MOST_ASIDE = 32


class Boundary(msgspec.Struct, frozen=True):
    """A compaction whose summary is still to come."""

    uuid: str
    before: int  # tokens
    kept: str | None  # the first message that stays in the context


class Tip(msgspec.Struct, omit_defaults=True):
    """What is noted of a conversation. It is small, whatever the conversation is."""

    leaf: str = ""  # the record that new ones of ours hang from
    near: list[str] = []  # the last response and its results, or the last message
    aside: list[str] = []  # records that hang from these and are not displayed
    response: str = ""
    calls: dict[str, tuple[str, str]] = {}  # that wait: id → name of the tool, uuid of the record
    counted: dict[str, Counted] = {}  # the last response → its usage so far
    boundary: Boundary | None = None
    inner: bool | None = None  # a subagent's transcript; None: nothing was said yet
    agent: str = ""
    at: str = ""  # the last time that was seen
    cwd: str = ""
    version: str = ""
    branch: str = ""

    def add(self, value: Object) -> bool | None:
        """Take in the next chain record: whether it is displayed. None: it may be a branch."""
        uuid, parent = value["uuid"], value.get("parentUuid")
        if self.has(uuid):
            return None
        self._learn(value, "timestamp", "at")
        if value["type"] not in SAID:
            return self._add_unsaid(value)
        side = bool(value.get("isSidechain"))
        begun = self.inner is not None
        if self.inner is None:
            self.inner = side
        if self.inner and not side:
            return None
        if value.get("teamName") or (side and not self.inner):
            return False
        if not self.has(parent) and (begun or parent is not None):
            return None
        if value.get("isMeta"):
            self._add_aside(uuid)
        elif not self._add_said(value):
            return None
        self.leaf = uuid
        for key, field in _COMMON.items():
            self._learn(value, key, field)
        return not value.get("isMeta")

    def has(self, uuid: object) -> bool:
        """Whether a record that hangs from it goes on with the conversation."""
        return uuid == self.leaf or uuid in self.near or uuid in self.aside

    def _learn(self, value: Object, key: str, field: str) -> None:
        found = value.get(key)
        if isinstance(found, str):
            setattr(self, field, found)

    def _add_unsaid(self, value: Object) -> bool | None:
        uuid, parent = value["uuid"], value.get("parentUuid")
        if value.get("subtype") == "compact_boundary":
            return self._add_boundary(value)
        if self.inner is not None and not self.has(parent):
            return False  # elsewhere it hides nothing, and what hangs from it will be asked about
        self._add_aside(uuid)
        if value["type"] != "progress" and parent == (self.leaf or None):
            self.leaf = uuid
        return False

    def _add_aside(self, uuid: str) -> None:
        self.aside = [*self.aside[1 - _MOST_ASIDE :], uuid]

    def _add_near(self, uuid: str) -> None:
        self.near = [*self.near[1 - _MOST :], uuid]

    def _add_boundary(self, value: Object) -> bool | None:
        if value.get("isSidechain") and self.inner is False:
            return False
        goes_on = value.get("parentUuid") is None and self.has(value.get("logicalParentUuid"))
        if self.inner is not None and not goes_on:
            return None
        kept = preserved(value)
        if kept and value["uuid"] != boundary_uuid(_anchor(value)):
            return None  # what they preserve need not begin with a message
        self._begin(value["uuid"])
        self.leaf = value["uuid"]
        self.boundary = Boundary(value["uuid"], tokens_before(value), kept[0] if kept else None)
        return False

    def _begin(self, uuid: str) -> None:
        self.near, self.aside = [uuid], []
        self.calls, self.counted = {}, {}
        self.response, self.boundary = "", None

    def _add_said(self, value: Object) -> bool:
        uuid = value["uuid"]
        results = set(block_ids(value, "tool_result", "tool_use_id"))
        if not results <= self.calls.keys():
            return False
        if value["type"] == "assistant":
            response = response_of(value)
            if response == self.response:
                self._add_near(uuid)
            else:
                self._begin(uuid)
                self.response = response
            for name, tool in tools_of(value):
                self.calls[name] = (tool, uuid)
                if len(self.calls) > _MOST:
                    del self.calls[next(iter(self.calls))]
        elif results and self._is_answer(value, len(results)):
            self._add_near(uuid)
            for name in results:
                del self.calls[name]
        else:
            self._begin(uuid)
        return True

    def _is_answer(self, value: Object, results: int) -> bool:
        """Whether a record is nothing but so many results, of calls that were made here."""
        content = value["message"]["content"]
        return len(content) == results and (value.get("agentId") or "") == self.agent

    def count(self, value: Object) -> Usage | None:
        """What a record adds to the usage of its response."""
        added = count(value, self.counted)
        if len(self.counted) > 1:
            del self.counted[next(iter(self.counted))]  # of a response that has ended
        return added


_COMMON = {"cwd": "cwd", "version": "version", "gitBranch": "branch", "agentId": "agent"}


def _anchor(boundary: Object) -> str:
    details = boundary.get("compactMetadata")
    messages = details.get("preservedMessages") if isinstance(details, dict) else None
    anchor = messages.get("anchorUuid") if isinstance(messages, dict) else None
    return anchor if isinstance(anchor, str) else ""
