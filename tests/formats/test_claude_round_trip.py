"""Any transcript goes through our log and back, object for object; and so do real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import ForeignSession, HiddenMessages, InMemorySource, Summary, split_lines
from everlog.interop.formats.jsonl import parse_records
from everlog.log.fold import fold
from everlog.model import Message, Metadata, user
from tests.examples import examples
from tests.formats.claude_session import ID, encode, read, uuid
from tests.formats.native import through_native

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "claude-code"
NOBODY = Metadata(id="x")

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2), max_leaves=4
)
extras = st.dictionaries(words.map("x-{}".format), values, max_size=1)


def either(*chosen: Any) -> st.SearchStrategy[Any]:
    return st.one_of(*(one if isinstance(one, st.SearchStrategy) else st.just(one) for one in chosen))


def record(**keys: Any) -> st.SearchStrategy[dict[str, Any]]:
    fixed = {key: one if isinstance(one, st.SearchStrategy) else st.just(one) for key, one in keys.items()}
    made: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(fixed)
    return st.builds(lambda one, more: {**one, **more}, made, extras)


calls = st.sampled_from(["t1", "t2", "t3"])
inner_blocks = st.one_of(
    record(type="text", text=words), record(type="image", source=values), record(type="new", data=values)
)
blocks = st.one_of(
    record(type="text", text=words),
    record(type="thinking", thinking=words, signature=either(words, None)),
    record(type="tool_use", id=calls, name=words, input=st.dictionaries(words, values, max_size=1)),
    record(type="tool_result", tool_use_id=calls, content=either(words, st.lists(inner_blocks, max_size=2))),
    record(type="tool_result", tool_use_id=calls, content=words, is_error=either(True, False, None)),
    record(type="image", source=record(type="base64", media_type="image/png", data="AA==")),
    record(type="document", source=record(type="text", media_type="text/plain", data=words)),
    record(type="redacted_thinking", data=words),
    values,
)
contents = st.one_of(words, st.lists(blocks, max_size=3), values)
uuids = st.integers(1, 9).map(uuid)
parents = st.one_of(st.none(), uuids, st.just("nobody"), values)
common = {"uuid": uuids, "parentUuid": parents, "sessionId": ID}
chain = st.one_of(
    record(type="user", message=record(role="user", content=contents), **common),
    record(
        type="assistant",
        message=record(
            id=st.sampled_from(["m1", "m2"]),
            content=contents,
            usage=either(values, {"input_tokens": 1, "output_tokens": 2}),
            model=either(words, None),
        ),
        requestId=either("r", None),
        **common,
    ),
    record(type="user", message=record(content=words), isCompactSummary=True, **common),
    record(
        type="system",
        subtype="compact_boundary",
        logicalParentUuid=parents,
        compactMetadata=either(values, record(preservedSegment=record(headUuid=uuids, tailUuid=uuids))),
        **common,
    ),
    record(type="user", message=record(content=words), isMeta=True, **common),
    record(type="assistant", message=record(content=contents), isSidechain=True, **common),
    record(type=st.sampled_from(["attachment", "progress", "system"]), data=values, **common),
)
beside = st.one_of(
    record(type=st.sampled_from(["ai-title", "mode", "damaged", "duplicate"]), aiTitle=values),
    record(type=words),
    st.dictionaries(words, values, max_size=2),
)
transcripts = st.lists(st.one_of(chain, chain, beside), max_size=12)


def objects(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.split(b"\n") if line.strip()]


def exactly(found: list[Any]) -> list[str]:
    """Objects in a form in which 1 and true differ."""
    return [json.dumps(one, sort_keys=True) for one in found]


def back(made: ForeignSession) -> bytes:
    written = claude.write(NOBODY, through_native(made))
    assert written.losses == ()
    (data,) = [one for path, one in written.files.items() if path.endswith(".jsonl")]
    return data


@settings(max_examples=examples(150), deadline=None)
@given(transcripts)
def test_every_transcript_comes_back_equal(given_objects: list[dict[str, Any]]) -> None:
    made = read(encode(given_objects))
    assert exactly(objects(back(made))) == exactly(given_objects)
    assert len({item.id for item in made.items}) == len(made.items)


@settings(max_examples=examples(100), deadline=None)
@given(transcripts, st.integers(0, 2000), st.binary(max_size=5))
def test_whatever_the_bytes_are_reading_returns_and_nothing_is_dropped(
    given_objects: list[dict[str, Any]], place: int, noise: bytes
) -> None:
    data = encode(given_objects)
    place = min(place, len(data))
    broken = data[:place] + noise + data[place + len(noise) :]
    made = read(broken)
    again = back(made).split(b"\n")
    whole = [line for line in broken.split(b"\n") if line in data.split(b"\n") and line]
    found = [exactly([row.value])[0] for row in parse_records(split_lines(b"\n".join(again))) if row.value is not None]
    assert set(exactly([json.loads(line) for line in whole])) <= set(found)


@settings(max_examples=examples(150), deadline=None)
@given(transcripts)
def test_a_turn_added_to_any_transcript_is_the_end_of_its_conversation(given_objects: list[dict[str, Any]]) -> None:
    records = through_native(read(encode(given_objects)))
    records.append(replace(user("added"), seq=len(records) + 1))
    written = claude.write(NOBODY, records)
    (data,) = [one for path, one in written.files.items() if path.endswith(".jsonl")]
    made = read(data)
    away = {one for item in made.items if isinstance(item, HiddenMessages) for one in item.ids}
    live = [item for item in made.items if isinstance(item, Message) and item.id not in away]
    assert live[-1].text == "added"


# --- real files -----------------------------------------------------------------------------


def sources() -> list[Path]:
    return sorted(CORPUS.glob("*.jsonl")) if CORPUS.is_dir() else []


def source(path: Path) -> InMemorySource:
    beside = sorted(one for one in (path.parent / path.stem).rglob("*") if one.is_file())
    files = {one.relative_to(path.parent).as_posix(): one.read_bytes() for one in [path, *beside]}
    return InMemorySource(path.stem, files)


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_a_real_session_loses_nothing_and_comes_back_equal(path: Path) -> None:
    files = source(path)
    made = claude.read(files)
    reads = {f"{path.stem}.jsonl": made} | {f"{one.session_id}.jsonl": one for one in made.children}
    assert set(reads) == {one for one in files.paths() if one.endswith(".jsonl")}
    for name, one in reads.items():
        assert one.damage == ()
        assert claude.recognises(name, files.read(name)[: 64 * 1024])
        given_objects = objects(files.read(name))
        assert one.line_count == len(given_objects)
        assert exactly(objects(back(one))) == exactly(given_objects)
        texts = {item.text for item in one.items if isinstance(item, Message)}
        texts |= {item.text for item in one.items if isinstance(item, Summary)}
        for value in given_objects:
            if value["type"] in ("user", "assistant") and not value.get("isMeta"):
                assert said(value) <= texts


def said(value: dict[str, Any]) -> set[str]:
    content = value["message"]["content"]
    if isinstance(content, str):
        return {content}
    return {block["text"] for block in content if block["type"] == "text"}


@pytest.mark.skipif(not sources(), reason="the corpus is not here")
def test_both_real_compactions_are_crossed() -> None:
    crossed = 0
    for path in sources():
        made = claude.read(source(path))
        places = [at for at, item in enumerate(made.items) if isinstance(item, Summary)]
        crossed += len(places)
        if places:
            before = [item.id for item in made.items[: places[0]] if isinstance(item, Message)]
            view = {message.id for message in fold(through_native(made)).messages}
            assert before and set(before) <= view
    assert crossed == 2
