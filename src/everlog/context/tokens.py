"""Token counts: an estimate that needs no vocabulary, and exact counts where there is one.

The estimate imitates o200k, the vocabulary of the GPT-4o family. It is meant to be a little high:
about 10 % on most texts, and between −10 % and +35 % on prose, code, listings, logs, JSON, hex
and base64, in English and in other languages. A count that is too high compacts a little early;
one that is too low overflows a window. `exact_counter` counts instead of estimating and needs the
extra `everlog[tokens]`.

The estimate has two parts, both sums over characters and so additive:

* A Latin-1 character has a weight, and a change from one kind of character to another has a price:
  a word after a space is cheap, a digit after a letter is expensive. Both are numbers of *bits*,
  so a text is weighed by arithmetic on one long integer and never by a loop in Python.
* Every other character counts as a `?` there and adds the rate of its script.

Nothing here reads files or the network. The table of model windows contains only what is certain;
for other models the provider's figure or a setting decides.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from everlog.errors import SettingsError
from everlog.model import AnyBlock, File, Image, Message, Text, Thinking, ToolCall, Usage

DEFAULT_WINDOW = 200_000  # of an unknown model

TokenCounter = Callable[[str], int]

# --- text -----------------------------------------------------------------------------------

# Characters, weight, kind. A character costs its weight, and 2 for each bit in which its kind
# differs from its neighbour's; 15 of these units are a token. The end of a text is kind 0, a
# newline. Weights and kinds were found together, by descent over both, as those that keep the
# most of some 8,000 samples of 130 sorts of text inside the bounds of the module's docstring
# when compared with o200k; no single figure means anything. Rare letters are heavy because they
# are rare in words but not in base64 and identifiers.
_CLASSES = (
    ("\n\r", 3, 0b00000000),
    ("\t", 4, 0b00000000),
    (" ", 1, 0b10111000),
    ("acdehilnorst", 1, 0b11111001),
    ("fgkmpuv", 1, 0b11111101),
    ("bjqwxyz", 8, 0b10111000),
    ("ACDEFGHILMNOPRSTUWY", 3, 0b11111000),
    ("BJKQVXZ", 8, 0b00000010),
    ("0123456789", 6, 0b11000111),
    ("?", 1, 0b10111010),
    (".", 1, 0b11111010),
    (",", 3, 0b10100010),
    (":@", 1, 0b01101010),
    ("';_", 1, 0b01101000),
    ("/>", 1, 0b00111000),
    ("#*-=", 1, 0b00111111),
    ('"%`', 3, 0b11101010),
    ("!()<[]^{}", 4, 0b11101000),
    ("$&+\\|~", 8, 0b10100011),
)
_CONTROL, _SYMBOL, _ACCENTED = (8, 0b00000111), (8, 0b10110110), (1, 0b01000001)
_UNIT = 1 / 15

# The first code point of a script, and hundredths of a token for each of its characters on top
# of the `?`. The resolution is blocks of 256: Lao is treated as Thai.
_SCRIPTS = (
    (0x0000, 0),
    (0x0100, 60),  # Latin with marks
    (0x0300, 35),  # Greek
    (0x0400, 22),  # Cyrillic
    (0x0500, 35),  # Armenian, Hebrew
    (0x0600, 26),  # Arabic
    (0x0700, 220),  # Syriac, Thaana, N'Ko
    (0x0900, 26),  # Devanagari, Bengali
    (0x0A00, 30),  # Gurmukhi, Gujarati
    (0x0B00, 27),  # Odia, Tamil
    (0x0C00, 42),  # Telugu, Kannada
    (0x0D00, 36),  # Malayalam, Sinhala
    (0x0E00, 42),  # Thai
    (0x0F00, 150),  # Tibetan
    (0x1000, 40),  # Burmese, Georgian
    (0x1100, 217),  # Ethiopic and others that the vocabulary hardly covers
    (0x1700, 58),  # Khmer
    (0x1800, 250),
    (0x1E00, 10),  # Vietnamese
    (0x1F00, 107),  # Greek with all marks
    (0x2000, 50),  # dashes, quotation marks, bullets
    (0x2100, 120),  # arrows, mathematics
    (0x2500, 60),  # box drawing
    (0x2600, 120),  # symbols, dingbats
    (0x2800, 250),
    (0x3000, 71),  # kana, punctuation of Chinese and Japanese
    (0x3100, 150),
    (0x3400, 250),
    (0x4E00, 79),  # Chinese, kanji
    (0xA000, 250),
    (0xAC00, 65),  # Hangul
    (0xD800, 105),  # each half of a surrogate pair: mostly emoji
    (0xE000, 250),
    (0xFB00, 150),
    (0xFF00, 80),  # full-width forms
)

# A text that repeats one character is a special case. There are long tokens for runs of these …
_LONG_RUNS = frozenset("\t\n !#%*+-./:;=_~")
# … and shorter ones, of at least four characters, for runs of these.
_SHORT_RUNS = frozenset("\"$'()<>?@\\^|,0123456789abcdefhiklmorsvxyABCEFILMOXY")

_SAMPLE_SIZE = 262_144  # characters; a longer text is estimated from samples of this total size
_SAMPLE_COUNT = 512


def _tables() -> tuple[bytes, bytes, bytes]:
    """Return weights and kinds of the Latin-1 bytes, both as bits, and rates by high byte."""
    weights, kinds = bytearray(256), bytearray(256)
    for code in range(256):
        weight, kind = _CONTROL if code < 128 else _ACCENTED if chr(code).isalpha() else _SYMBOL
        for characters, *entry in _CLASSES:
            if chr(code) in characters:
                weight, kind = entry
        weights[code], kinds[code] = (1 << weight - 1) - 1, kind
    rates = bytearray(256)
    for start, rate in _SCRIPTS:
        rates[start >> 8 :] = bytes([rate]) * (256 - (start >> 8))
    return bytes(weights), bytes(kinds), bytes(rates)


_WEIGHTS, _KINDS, _RATES = _tables()
_WEIGHTLESS = bytes(code for code in range(256) if not _WEIGHTS[code])


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text; 0 only for the empty one."""
    size = len(text)
    if not size:
        return 0
    if size <= _SAMPLE_SIZE:
        tokens = _weigh(text)
    else:
        window, step = _SAMPLE_SIZE // _SAMPLE_COUNT, size // _SAMPLE_COUNT
        sample = "".join([text[start : start + window] for start in range(0, size, step)])
        tokens = _weigh(sample) * size / len(sample)
    first, middle = text[0], text[size // 2]
    if first == text[-1] or text[size // 2 : size // 2 + 16] == middle * 16:
        runs = (text.count(character) * _run_rate(character) for character in (first, middle))
        tokens = max(tokens, *runs)
    return round(tokens) or 1


def _weigh(text: str) -> float:
    data = text.encode("latin-1", "replace")
    kinds = int.from_bytes(data.translate(_KINDS), "little")
    weights = int.from_bytes(data.translate(_WEIGHTS, _WEIGHTLESS), "little")
    units = len(data) + weights.bit_count() + 2 * (kinds ^ kinds >> 8).bit_count()
    tokens = units * _UNIT
    if b"?" in data and not text.isascii():
        high = text.encode("utf-16-le", "surrogatepass")[1::2]
        tokens += sum(high.translate(_RATES, b"\0")) / 100
    return tokens


def _run_rate(character: str) -> float:
    """Return the minimum cost of a character in a long run of itself."""
    if character in _LONG_RUNS:
        return 0
    if character in _SHORT_RUNS:
        return 0.25
    return 0.5 if character.isascii() and character.isprintable() else 1


# --- messages -------------------------------------------------------------------------------

_MESSAGE_OVERHEAD = 4  # tokens that a provider adds to each message
_UNKNOWN_ATTACHMENT = 1200  # tokens of an image or a file of unknown size
_PIXELS_PER_TOKEN = 750
_MIN_IMAGE, _MAX_IMAGE = 85, 1600  # tokens; providers scale larger images down
_BYTES_PER_TOKEN = 20  # in a file that is not text
_MAX_FILE = 25_000  # tokens of such a file
_JPEG_HEADER = 87_384  # characters of base64, 64 KB, searched for the size of a JPEG


def estimate(message: Message, count: TokenCounter = estimate_text) -> int:
    """Estimate the tokens of a message in a context."""
    tokens = _MESSAGE_OVERHEAD
    for block in message.content:
        tokens += count(block.text) if isinstance(block, Text) else _estimate_block(block, count)
    return tokens


def usage_tokens(usage: Usage) -> int:
    """Return what a provider counted for a whole context: its total, else the sum of its parts."""
    return usage.total_tokens or (
        usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    )


def _estimate_block(block: AnyBlock, count: TokenCounter) -> int:
    if isinstance(block, Text):
        return count(block.text)
    if isinstance(block, Thinking):
        return count(block.thinking)
    if isinstance(block, ToolCall):
        return count(block.name) + count(_to_json(block.arguments))
    if isinstance(block, Image):
        return _estimate_image(block)
    if isinstance(block, File):
        return count(block.name) + _estimate_file(block, count)
    return count(_to_json(block.data))


def _to_json(value: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):  # not JSON, such as lone surrogates; it is never stored
        return repr(value)


def _estimate_image(image: Image) -> int:
    width, height = _dimensions(image.data)
    if not width * height:
        return _UNKNOWN_ATTACHMENT
    return min(max(width * height // _PIXELS_PER_TOKEN, _MIN_IMAGE), _MAX_IMAGE)


def _estimate_file(file: File, count: TokenCounter) -> int:
    if not file.data:
        return _UNKNOWN_ATTACHMENT
    if file.mime_type.startswith("text/") or "json" in file.mime_type:
        content = _decode(file.data)
        if content:
            return count(content.decode("utf-8", "replace"))
    return min(len(file.data) * 3 // 4 // _BYTES_PER_TOKEN, _MAX_FILE)


def _decode(data: str, limit: int | None = None) -> bytes:
    """Decode base64 or a `data:` URL, or its beginning; nothing if it is neither."""
    start = data.find(",", 0, 200) + 1
    try:
        return binascii.a2b_base64(data[start : limit and start + limit] + "==")
    except ValueError:
        return b""


def _dimensions(data: str) -> tuple[int, int]:
    """Return width and height from the header of a PNG, GIF, WebP or JPEG, else zeros."""
    head = _decode(data, 64)
    if head.startswith(b"\x89PNG"):
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head.startswith(b"GIF8"):
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head.startswith(b"RIFF"):
        if head[12:16] == b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        if head[12:16] == b"VP8L":
            packed = int.from_bytes(head[21:25], "little")
            return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return _jpeg_dimensions(_decode(data, _JPEG_HEADER)) if head.startswith(b"\xff\xd8") else (0, 0)


def _jpeg_dimensions(head: bytes) -> tuple[int, int]:
    """Return the size from the first start-of-frame segment, skipping those before it."""
    offset = 2
    while offset + 9 <= len(head) and head[offset] == 0xFF:
        if 0xC0 <= head[offset + 1] <= 0xCF and head[offset + 1] not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", head, offset + 5)
            return width, height
        offset += 2 + int.from_bytes(head[offset + 2 : offset + 4], "big")
    return 0, 0


# --- exact counts ---------------------------------------------------------------------------


def exact_counter(name: str = "o200k_base") -> TokenCounter:
    """Return a counter that uses the named vocabulary; keep it, since loading takes a moment."""
    try:
        from splintr import Tokenizer  # noqa: PLC0415 - an extra, and 50 ms
    except ImportError as error:
        raise SettingsError("exact token counts need splintr-rs", hint="pip install 'everlog[tokens]'") from error
    try:
        tokenizer = Tokenizer.from_pretrained(name)
    except ValueError as error:
        raise SettingsError(f"no vocabulary {name!r}", hint=str(error), name=name) from error

    def count(text: str) -> int:
        try:
            # Text that looks like a special token is still text.
            return len(tokenizer.encode_ordinary(text))
        except UnicodeEncodeError:  # a lone surrogate
            return len(tokenizer.encode_ordinary(text.encode("utf-8", "replace").decode()))

    return count


# --- windows --------------------------------------------------------------------------------

# The first pattern found in a model's name wins. Where variants differ, the smaller figure is used:
# a window assumed too small only compacts early, one assumed too large is an error.
_MODEL_WINDOWS = tuple(
    (re.compile(pattern), window)
    for pattern, window in (
        (r"claude", 200_000),
        (r"gpt-5-chat", 128_000),
        (r"gpt-5", 400_000),
        (r"gpt-4\.1", 1_000_000),
        (r"gpt-4(o|\.5|-turbo|-vision|-1106|-0125)", 128_000),
        (r"gpt-4-32k", 32_768),
        (r"gpt-4", 8_192),
        (r"gpt-3\.?5-turbo-instruct", 4_096),
        (r"gpt-3\.?5", 16_385),
        (r"gpt-oss", 128_000),
        (r"\bo1-(mini|preview)", 128_000),
        (r"\bo[134]\b", 200_000),
        (r"gemini-1\.5-pro", 2_000_000),
        (r"gemini-(1\.0|pro)", 32_000),
        (r"gemini-(1\.5|[2-9]|flash)", 1_000_000),
        (r"gemma-?3-1b", 32_000),
        (r"gemma-?3", 128_000),
        (r"gemma", 8_192),
        (r"llama-?(4(?!\d)|v?3[.p_-][1-9](?!\d|b))", 128_000),
        (r"llama-?2", 4_096),
        (r"llama", 8_192),
        (r"qwen-?3-coder", 256_000),
        (r"qwen|qwq", 32_768),
        (r"mistral|mixtral|ministral|codestral|devstral|magistral|pixtral", 32_000),
        (r"deepseek", 64_000),
        (r"grok-4", 256_000),
        (r"grok", 128_000),
        (r"command-[ar]", 128_000),
        (r"kimi|glm-4\.[5-9]", 128_000),
        (r"nova-(lite|pro)", 300_000),
        (r"nova-micro", 128_000),
    )
)


def known_window(model: str) -> int | None:
    """Return the context window of a model, by any of the names that providers give it."""
    name = model.lower()
    return next((window for pattern, window in _MODEL_WINDOWS if pattern.search(name)), None)


def choose_window(model: str = "", *, setting: int = 0, provider: int | None = None) -> int:
    """Return the window to use: the setting, else the provider's, else the known one."""
    return setting or provider or known_window(model) or DEFAULT_WINDOW
