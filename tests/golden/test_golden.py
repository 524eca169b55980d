"""A log written by format version 1, kept for ever: every later version must read it the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import everlog
from everlog.log import line_codec
from everlog.model import OtherBlock, Unknown

GOLDEN = Path(__file__).parent / "session_v1.jsonl"


def test_every_line_is_checked_and_written_again_byte_for_byte() -> None:
    for seq, line in enumerate(GOLDEN.read_bytes().split(b"\n")[:-1]):
        reading = line_codec.decode(line)
        assert reading.checked
        assert reading.record is not None
        assert reading.record.seq == seq
        again = line_codec.encode(reading.record)[1]
        assert line_codec.build_line(again, reading.record.record_type, seq) == line


def test_the_log_means_what_it_meant(tmp_path: Path) -> None:
    store = everlog.open_store(tmp_path / "root", create=True)
    session = store.create()
    shutil.copy(GOLDEN, tmp_path / "root" / "sessions" / session.id / "session.jsonl")
    session = everlog.open_store(tmp_path / "root", create=True).session(session.id)
    assert session.verify() == ()
    assert [message.seq for message in session.messages()] == [1, 2, 3, 4]
    context = session.context()
    # The summary covers the call of record 3, so its result cannot be sent.
    assert [message.seq for message in context.messages] == [0, 4]
    assert [one.seq for one in context.left_out] == [3]
    assert context.messages[0].text.endswith("<summary>\n## Goal\n- fix\n</summary>")
    metadata = session.metadata
    assert (metadata.display_title, metadata.sender, metadata.key) == ("Title", "tg:1", "sk_v1_x")
    assert metadata.message_count == 4
    assert metadata.last_message_at == "2026-01-02T03:04:08.000Z"
    assert (metadata.uptime_secs, metadata.metrics.total_tokens.total_tokens) == (1, 12)
    assert isinstance(session.messages()[3].content[2], OtherBlock)
    assert isinstance(session.record(11), Unknown)
    assert session.append(everlog.user("next")).seq == 12
