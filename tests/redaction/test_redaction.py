"""Redaction: what is well known to be secret is covered up, and nothing else."""

from __future__ import annotations

import random
import string
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.redaction import COVER, redact
from tests.redaction import secret_kinds
from tests.redaction.clean_texts import clean_texts

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
Chance = random.Random


def some(chance: Chance, count: int, of: str = LETTERS) -> str:
    return "".join(chance.choices(of, k=count))


KINDS: dict[str, Callable[[Chance], str]] = {
    "aws": lambda c: "AKIA" + some(c, 16, string.ascii_uppercase + string.digits),
    "github": lambda c: f"gh{c.choice('pousr')}_{some(c, 36)}",
    "github pat": lambda c: f"github_pat_{some(c, 22)}_{some(c, 59)}",
    "gitlab": lambda c: f"glpat-{some(c, 20)}",
    "slack": lambda c: f"xoxb-{some(c, 12, string.digits)}-{some(c, 12, string.digits)}-{some(c, 24)}",
    "stripe": lambda c: f"sk_live_{some(c, 24)}",
    "anthropic": lambda c: f"sk-ant-api03-{some(c, 93)}-AA",
    "openai": lambda c: f"sk-proj-{some(c, 74)}",
    "openai old": lambda c: f"sk-{some(c, 48)}",
    "google": lambda c: f"AIza{some(c, 35)}",
    "google oauth": lambda c: f"ya29.{some(c, 60)}",
    "npm": lambda c: f"npm_{some(c, 36)}",
    "pypi": lambda c: f"pypi-AgEIcHlwaS5vcmc{some(c, 80)}",
    "hugging face": lambda c: f"hf_{some(c, 34)}",
    "groq": lambda c: f"gsk_{some(c, 52)}",
    "sendgrid": lambda c: f"SG.{some(c, 22)}.{some(c, 43)}",
    "mailgun": lambda c: f"key-{some(c, 32, HEX)}",
    "digitalocean": lambda c: f"dop_v1_{some(c, 64, HEX)}",
    "databricks": lambda c: f"dapi{some(c, 32, HEX)}",
    "linear": lambda c: f"lin_api_{some(c, 40)}",
    "shopify": lambda c: f"shpat_{some(c, 32, HEX)}",
    "jwt": lambda c: f"eyJ{some(c, 30)}.eyJ{some(c, 60)}.{some(c, 43)}",
    "telegram": lambda c: f"{some(c, 10, string.digits)}:AA{some(c, 33)}",
    "docker": lambda c: f"dckr_pat_{some(c, 27)}",
    "age": lambda c: f"AGE-SECRET-KEY-1{some(c, 58, string.digits + string.ascii_uppercase)}",
}
PLACES = [
    "export TOKEN={}",
    'curl -H "X-Key: {}" https://example.org',
    "the key is {}, keep it",
    '{{"token": "{}"}}',
    "{}",
]


def test_five_hundred_secrets_of_twenty_five_kinds_are_found() -> None:
    chance = Chance(7)
    assert len(KINDS) == 25
    missed = []
    for kind, make in KINDS.items():
        for at in range(20):
            secret = make(chance)
            text, count = redact(PLACES[at % len(PLACES)].format(secret))
            if secret in text or count != 1:
                missed.append((kind, secret, text))
    assert missed == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://app:s3cret-Pass@db:5432/x", f"postgres://app:{COVER}@db:5432/x"),
        ("Authorization: Bearer abcdef1234567890", f"Authorization: Bearer {COVER}"),
        ("password = 'hunter2-hunter2'", f"password = '{COVER}'"),
        ('"api_key": "9f8e7d6c5b4a39281706"', f'"api_key": "{COVER}"'),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", f"AWS_SECRET_ACCESS_KEY={COVER}"),
        ("x\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\ny", f"x\n{COVER}\ny"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut", COVER),
    ],
)
def test_credentials_are_covered_where_they_stand(text: str, shown: str) -> None:
    assert redact(text) == (shown, 1)


@pytest.mark.parametrize(
    "text",
    [
        "password: str",
        "password = os.environ['DB_PASSWORD']",
        "api_key=settings.api_key",
        "token_count = 123456789",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "01M7HD3MM1HEGFMA0S3SX196NN",
        "task-force-of-the-year sk-learn risk-free",
        "https://example.org:8080/path@2",
        "the signature EqQBCkYIBxgCKkDx9vC0 stays",
    ],
)
def test_what_only_looks_a_little_like_one_stays(text: str) -> None:
    assert redact(text) == (text, 0)


def test_covering_up_twice_changes_nothing() -> None:
    text, _ = redact("password = 'hunter2-hunter2' " + "ghp_" + "a1" * 18)
    assert redact(text) == (text, 0)


def test_clean_code_stays_as_it_is() -> None:
    """Python's own library: fewer than one line in a thousand may be touched."""
    library = Path(sysconfig.get_paths()["stdlib"])
    lines = touched = 0
    for file in sorted(library.glob("*.py")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            lines += 1
            touched += redact(line)[1] > 0
    assert lines > 50_000 and touched <= lines / 1000


@pytest.mark.parametrize("kind", sorted(secret_kinds.KINDS))
def test_a_secret_is_found_where_it_is_found_in_practice(kind: str) -> None:
    chance = Chance(kind)
    for _ in range(20):
        text, secret = secret_kinds.KINDS[kind](chance)
        redacted, count = redact(text.format(secret))
        assert secret not in redacted
        assert count == 1
        assert redact(redacted) == (redacted, 0)


def test_texts_without_secrets_stay() -> None:
    texts = list(clean_texts())
    assert len(texts) == 200
    assert [text for text in texts if redact(text) != (text, 0)] == []


def test_a_long_text_without_a_secret_is_read_once() -> None:
    """No rule backtracks over a long line: each of these would take hours."""
    words = (
        "a",
        "curl ",
        "mysql ",
        "curl -x ",
        "password ",
        "token=",
        "secret.",
        "login a ",
        "x://",
        "a.b-c_d:",
        "<a>",
        "-",
    )
    for text in (word * (200_000 // len(word)) for word in words):
        assert redact(text) == (text, 0)
