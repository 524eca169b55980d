"""The estimate against a real vocabulary, and everything else that decides a context's size."""

from __future__ import annotations

import base64
import difflib
import json
import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.context.tokens import (
    DEFAULT_WINDOW,
    TokenCounter,
    choose_window,
    estimate,
    estimate_text,
    exact_counter,
    known_window,
    usage_tokens,
)
from everlog.errors import SettingsError
from everlog.model import File, Image, OtherBlock, Text, Thinking, ToolCall, Usage, assistant, tool_result, user

ENGLISH = """\
The harbour lay still that morning, and the boats moved only when somebody stepped from one to
the other. Anna had promised to be there before the tide turned, but the road from the village
was long, and she stopped twice to ask whether the bridge had been repaired. Nobody knew. "You
will see when you get there," said the baker, who had never left the valley and did not mean to.
When she finally reached the water, the old captain was already coiling his ropes. He looked at
the sky, then at her shoes, and laughed quietly, as if both told him the same thing about the day
that was to come. They would sail anyway, he decided; the fish do not read the weather report.
"""
CHINESE = """\
那天早上港口很安静,只有人从一条船走到另一条船的时候,船才会轻轻地晃动。安娜答应在退潮之前到达,
可是从村子过来的路很长,她两次停下来打听桥有没有修好。没有人知道。面包师说:“你到了那里就会看到的。”
他从来没有离开过山谷,也不打算离开。她终于走到水边的时候,老船长已经在收绳子了。他看了看天空,又看了看
她的鞋子,轻轻地笑了起来,好像两者都告诉他今天会发生什么事情。不管怎样他们都要出海,因为鱼不看天气预报。
"""
JAPANESE = """\
その朝、港はとても静かで、誰かが船から船へと渡るときだけ、船がゆっくりと揺れていました。アンナは潮が引く前に
着くと約束していましたが、村からの道は長く、橋が直ったかどうかを二度も立ち止まって尋ねました。誰も知りません
でした。「行けば分かるよ」と、谷を一度も出たことのないパン屋が言いました。ようやく水辺に着いたとき、年老いた
船長はもうロープを巻いていました。彼は空を見て、それから彼女の靴を見て、静かに笑いました。
"""
RUSSIAN = """\
В то утро гавань была совсем тихой, и лодки качались лишь тогда, когда кто-нибудь переходил с одной
на другую. Анна обещала прийти до отлива, но дорога из деревни была длинной, и она дважды
останавливалась, чтобы спросить, починили ли мост. Никто не знал. «Придёшь — увидишь», — сказал
пекарь, который никогда не покидал долину и не собирался. Когда она наконец дошла до воды, старый
капитан уже сматывал канаты. Он посмотрел на небо, потом на её ботинки и тихо засмеялся.
"""
KOREAN = """\
그날 아침 항구는 무척 조용했고, 누군가 이 배에서 저 배로 건너갈 때만 배들이 천천히 흔들렸습니다. 안나는 물이 빠지기
전에 오겠다고 약속했지만 마을에서 오는 길은 멀었고, 다리가 고쳐졌는지 물어보려고 두 번이나 멈춰 섰습니다. 아무도
몰랐습니다. 마침내 물가에 닿았을 때 늙은 선장은 벌써 밧줄을 감고 있었습니다. 그는 하늘을 보고 조용히 웃었습니다.
"""
GERMAN = """\
Der Hafen lag an diesem Morgen still, und die Boote bewegten sich nur, wenn jemand von einem zum
anderen stieg. Anna hatte versprochen, vor der Ebbe da zu sein, doch der Weg aus dem Dorf war
lang, und zweimal blieb sie stehen, um zu fragen, ob die Brücke schon ausgebessert sei. Niemand
wusste es. »Du wirst es sehen, wenn du dort bist«, sagte der Bäcker, der das Tal nie verlassen
hatte und es auch nicht vorhatte. Als sie endlich ans Wasser kam, rollte der alte Kapitän längst
seine Taue auf, blickte zum Himmel und lachte leise.
"""
CODE = '''\
def merge(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Join two sorted lists, and those intervals that touch."""
    merged: list[Interval] = []
    for interval in sorted([*first, *second], key=lambda one: (one.start, -one.stop)):
        if merged and interval.start <= merged[-1].stop:
            merged[-1] = replace(merged[-1], stop=max(merged[-1].stop, interval.stop))
        else:
            merged.append(interval)
    if not merged:
        raise ValueError(f"nothing to merge: {len(first)} and {len(second)} intervals")
    return [one for one in merged if one.stop - one.start >= MINIMUM and not one.is_hidden]


class Interval(Struct, frozen=True):
    start: float
    stop: float = 0.0
    is_hidden: bool = False
'''
SCRIPT = """\
export async function loadSessions(root: string, limit = 50): Promise<Session[]> {
  const entries = await fs.readdir(root, { withFileTypes: true });
  return entries
    .filter((entry) => entry.isDirectory() && ULID.test(entry.name))
    .map((entry) => ({ id: entry.name, path: path.join(root, entry.name) }))
    .slice(0, limit);
}
"""


def _random() -> random.Random:
    return random.Random(20260101)


def _json(indent: int | None) -> str:
    dice = _random()
    rows = [
        {
            "id": dice.randrange(10**9),
            "name": f"session {number}",
            "active": dice.random() < 0.5,
            "createdAt": f"2025-0{1 + number % 9}-11T10:0{number % 10}:00Z",
            "tags": ["work", "tests"][: number % 3],
            "score": round(dice.random() * 100, 3),
            "parent": None,
        }
        for number in range(60)
    ]
    return json.dumps(rows, indent=indent)


def _listing() -> str:
    dice = _random()
    names = ["config.toml", "index.db", "main.py", "README.md", "session_part2.jsonl", "tests"]
    return "\n".join(
        f"-rw-r--r-- 1 root root {dice.randrange(10**6):7d} Nov {dice.randrange(1, 29):2d} "
        f"{dice.randrange(24):02d}:{dice.randrange(60):02d} {dice.choice(names)}"
        for _ in range(80)
    )


def _hex() -> str:
    dice = _random()
    rows = (f"{dice.randrange(16**64):064x}  file{number}.bin" for number in range(40))
    return "\n".join(rows)


def _tree() -> str:
    dice = _random()
    words = ["config", "engine", "index", "log", "parser", "router", "session", "store", "tests"]
    return "\n".join(
        "│   " * dice.randrange(3) + f"├── {dice.choice(words)}_{dice.choice(words)}.py" for _ in range(80)
    )


def _log() -> str:
    dice = _random()
    said = ["connection closed by peer", "retrying in 5 s", "session opened", "cache is full"]
    return "\n".join(
        f"2025-11-{dice.randrange(1, 29):02d}T{dice.randrange(24):02d}:{dice.randrange(60):02d}:07.{dice.randrange(1000):03d}Z "
        f"{dice.choice(['INFO', 'WARN', 'ERROR'])} [worker-{dice.randrange(9)}] {dice.choice(said)} "
        f"peer=10.0.{dice.randrange(256)}.{dice.randrange(256)} id={dice.randrange(16**8):08x}"
        for _ in range(60)
    )


def _dump() -> str:
    data = _random().randbytes(1_600)
    return "\n".join(f"{at:08x}: {data[at : at + 16].hex(' ', 2)}" for at in range(0, len(data), 16))


def _table() -> str:
    dice = _random()
    return "\n".join(
        f"{row},{dice.choice(['north', 'south'])},{dice.random() * 1000:.2f},{dice.randrange(10**6)}"
        for row in range(120)
    )


def _diff() -> str:
    before, after = CODE.splitlines(), CODE.replace("merged", "joined").splitlines()
    return "\n".join(difflib.unified_diff(before, after, "a/merge.py", "b/merge.py", lineterm=""))


KINDS: dict[str, Callable[[], str]] = {
    "English": lambda: ENGLISH,
    "Python": lambda: CODE,
    "TypeScript": lambda: SCRIPT * 2,
    "Chinese": lambda: CHINESE,
    "Japanese": lambda: JAPANESE,
    "Russian": lambda: RUSSIAN,
    "JSON": lambda: _json(None),
    "indented JSON": lambda: _json(2),
    "directory listing": _listing,
    "tree": _tree,
    "hex": _hex,
    "hex dump": _dump,
    "uuids": lambda: "\n".join(str(UUID(int=random.Random(n).getrandbits(128))) for n in range(60)),
    "base64": lambda: base64.b64encode(_random().randbytes(6_000)).decode(),
    "log": _log,
    "CSV": _table,
    "diff": _diff,
    "Korean": lambda: KOREAN,
    "German": lambda: GERMAN,
    "half prose, half hex": lambda: ENGLISH * 3 + _hex(),
    "this file": lambda: Path(__file__).read_text(),
}


@pytest.fixture(scope="module")
def real() -> TokenCounter:
    return exact_counter()


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_near_the_true_count(kind: str, real: TokenCounter) -> None:
    text = KINDS[kind]()
    assert 0.90 <= estimate_text(text) / real(text) <= 1.35


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_estimated_like_a_short_one(kind: str) -> None:
    text = KINDS[kind]()
    many = 2 + 600_000 // len(text)  # so long that it is sampled
    assert abs(estimate_text(text * many) / (estimate_text(text) * many) - 1) < 0.05


def test_a_long_text_of_two_kinds_is_the_sum_of_both() -> None:
    prose, digits = ENGLISH * 400, _hex() * 90
    both = estimate_text(prose) + estimate_text(digits)
    assert abs(estimate_text(prose + digits) / both - 1) < 0.05


@given(st.text(st.characters(), max_size=300))
def test_any_text_has_an_estimate(text: str) -> None:
    tokens = estimate_text(text)
    assert (tokens >= 1) if text else (tokens == 0)
    assert tokens <= 4 * len(text) + 1
    assert abs(estimate_text(text * 2) - 2 * tokens) <= 0.02 * 2 * tokens + 2


@pytest.mark.parametrize("text", ["\ud800", "\x00" * 10, "x" * 1_000_000, " " * 1000, "\U0001f600"])
def test_odd_texts_do_no_harm(text: str, real: TokenCounter) -> None:
    assert estimate_text(text) >= 1
    assert real(text) >= 1


@pytest.mark.parametrize("character", ["x", "a", "0", "é", "中", "{", "я", "\U0001f600"])
def test_a_run_of_one_character_is_not_badly_undercounted(character: str, real: TokenCounter) -> None:
    text = character * 5_000
    assert estimate_text(text) >= 0.85 * real(text)


# --- messages


def test_every_block_counts() -> None:
    words = "what is this all about " * 40
    least = estimate_text(words)
    for block in (
        Text(words),
        Thinking(words),
        ToolCall("id", "tool", {"text": words}),
        ToolCall("id", words, {}),
        OtherBlock({"type": "note", "text": words}),
        File(name="a.txt", mime_type="text/plain", data=base64.b64encode(words.encode()).decode()),
    ):
        assert estimate(assistant([block])) >= least
    assert estimate(tool_result("c", words)) >= least
    assert estimate(user("")) > 0
    assert estimate(user(words), count=len) == len(words) + estimate(user(""))


def _png(width: int, height: int) -> str:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk).decode()


def _gif(width: int, height: int) -> str:
    return base64.b64encode(b"GIF89a" + struct.pack("<HH", width, height) + bytes(20)).decode()


def _jpeg(width: int, height: int) -> str:
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes(3)
    return base64.b64encode(b"\xff\xd8\xff\xe0\x00\x04ab" + frame + bytes(20)).decode()


def _webp(kind: bytes, body: bytes) -> str:
    return base64.b64encode(b"RIFF\0\0\0\0WEBP" + kind + bytes(4) + body + bytes(20)).decode()


def _webp_extended(width: int, height: int) -> str:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return _webp(b"VP8X", bytes(4) + sides)


def _webp_lossless(width: int, height: int) -> str:
    return _webp(b"VP8L", b"\x2f" + (width - 1 | height - 1 << 14).to_bytes(4, "little"))


def _webp_lossy(width: int, height: int) -> str:
    return _webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height))


@pytest.mark.parametrize("picture", [_png, _gif, _jpeg, _webp_extended, _webp_lossless, _webp_lossy])
def test_an_image_is_counted_by_its_size(picture: Callable[[int, int], str]) -> None:
    empty = estimate(user(""))
    base = empty - estimate(user([]))
    sizes = [
        estimate(user([Image(data=picture(width, height))])) - empty + base
        for width, height in ((10, 10), (600, 500), (4000, 3000))
    ]
    assert sizes[0] < 100
    assert sizes[1] == 400
    assert sizes[2] == 1_600


def test_an_image_of_unknown_size_has_a_fixed_price() -> None:
    for image in (Image(url="http://x/y"), Image(data="!!"), Image(data=""), Image(data="aGk=")):
        assert estimate(user([image])) - estimate(user([])) == 1_200


def test_a_large_file_is_not_counted_beyond_reason() -> None:
    data = base64.b64encode(bytes(3_000_000)).decode()
    assert estimate(user([File(name="a.zip", data=data)])) < 30_000


def test_a_block_that_is_no_json_is_counted_all_the_same() -> None:
    words = "\ud800 what is this all about " * 40
    for block in (ToolCall("id", "tool", {"text": words}), OtherBlock({"type": "x", "at": {words}})):
        assert estimate(assistant([block])) >= estimate_text(words)


# --- what providers count, and windows


def test_a_count_is_the_total_or_the_sum_of_its_parts() -> None:
    parts = Usage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4)
    assert usage_tokens(parts) == 10
    assert usage_tokens(Usage(input_tokens=5, total_tokens=9)) == 9
    assert usage_tokens(Usage()) == 0


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-opus-4-1", 200_000),
        ("anthropic:claude-sonnet-4-5", 200_000),
        ("Claude-3-Haiku", 200_000),
        ("gpt-4o", 128_000),
        ("openai/gpt-4o-mini-2024-07-18", 128_000),
        ("gpt-4-turbo-preview", 128_000),
        ("gpt-4.1-nano", 1_000_000),
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-3.5-turbo", 16_385),
        ("gpt-5-mini", 400_000),
        ("o1", 200_000),
        ("openai:o3-mini", 200_000),
        ("o4-mini", 200_000),
        ("gemini-2.0-flash", 1_000_000),
        ("google-gla:gemini-2.5-pro", 1_000_000),
        ("gemini-1.5-pro", 2_000_000),
        ("llama3.1:8b", 128_000),
        ("llama-3.3-70b", 128_000),
        ("llama3:8b", 8_192),
        ("llama-3-8b", 8_192),
        ("llama2", 4_096),
        ("qwen2.5-coder", 32_768),
        ("mistral-small", 32_000),
        ("deepseek-chat", 64_000),
    ],
)
def test_a_known_model_has_its_window(model: str, window: int) -> None:
    assert known_window(model) == window


def test_the_window_is_what_was_set_then_the_providers_then_the_tables_then_the_default() -> None:
    assert choose_window("gpt-4o", setting=5_000, provider=7_000) == 5_000
    assert choose_window("gpt-4o", provider=7_000) == 7_000
    assert choose_window("gpt-4o") == 128_000
    assert known_window("something of one's own") is None
    assert choose_window("something of one's own") == choose_window() == DEFAULT_WINDOW == 200_000


# --- exact counts


def test_an_exact_counter_counts_a_vocabulary(real: TokenCounter) -> None:
    assert real("hello world") == 2
    assert real("") == 0
    assert real("<|endoftext|>") > 1  # somebody typed it
    assert exact_counter("cl100k_base")("hello world") == 2
    with pytest.raises(SettingsError, match="no vocabulary"):
        exact_counter("nonsense")


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    with pytest.raises(SettingsError, match=r"everlog\[tokens\]"):
        exact_counter()
