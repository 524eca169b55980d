"""The parts of the gate that need no connection."""

from __future__ import annotations

from everlog.daemon.auth import LINK_SECONDS, MAX_LINKS, Credentials
from everlog.daemon.request_limits import MAX_DEPTH, RateLimiter, find_json_problem
from everlog.testing import FakeClock


class Source:
    """A token that can be changed."""

    def __init__(self, token: str) -> None:
        self.now, self.number, self.reads = token, 1, 0

    def stamp(self) -> tuple[int, ...] | None:
        return (self.number,) if self.now else None

    def token(self) -> str:
        self.reads += 1
        return self.now


def test_the_token_is_read_again_only_when_it_changed() -> None:
    source = Source("t" * 43)
    keys = Credentials(source)
    assert keys.is_token("t" * 43) and keys.is_token("t" * 43) and source.reads == 1
    assert not keys.is_token("") and not keys.is_token("t" * 42) and not keys.is_token("ü")
    source.now, source.number = "n" * 43, 2
    assert keys.is_token("n" * 43) and not keys.is_token("t" * 43)


def test_without_a_token_nothing_opens() -> None:
    source = Source("t" * 43)
    keys = Credentials(source)
    cookie, code = keys.cookie(), keys.make_code()
    source.now = ""
    assert not keys.is_token("") and not keys.is_token("t" * 43)
    assert not keys.is_cookie(cookie) and not keys.is_cookie(keys.cookie())
    assert not keys.redeem_code(code)


def test_the_cookie_is_the_tokens_own() -> None:
    one, other = Credentials(Source("t" * 43)), Credentials(Source("u" * 43))
    assert one.is_cookie(Credentials(Source("t" * 43)).cookie())
    assert not one.is_cookie(other.cookie()) and not one.is_cookie("")


def test_a_code_ends_after_a_while_and_there_are_never_too_many() -> None:
    clock = FakeClock(step=0)
    keys = Credentials(Source("t" * 43), clock)
    code = keys.make_code()
    clock.now += LINK_SECONDS
    assert not keys.redeem_code(code)
    codes = [keys.make_code() for _ in range(MAX_LINKS + 1)]
    assert not keys.redeem_code(codes[0]) and keys.redeem_code(codes[1]) and not keys.redeem_code(codes[1])


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    clock = FakeClock(step=0)
    bucket = RateLimiter(lambda: 10.0, clock)
    assert [bucket.acquire() for _ in range(50)] == [0.0] * 50
    wait = bucket.acquire()
    assert 0 < wait <= 0.1
    clock.now += 1
    assert [bucket.acquire() for _ in range(10)] == [0.0] * 10 and bucket.acquire() > 0
    clock.now += 3600
    assert sum(bucket.acquire() == 0 for _ in range(100)) == 50


def test_depth_is_that_of_values_not_of_text() -> None:
    assert find_json_problem(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) == ""
    assert "deeper" in find_json_problem(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
    assert find_json_problem(b'["' + b"[" * 10_000 + b'"]') == ""
    assert find_json_problem(b'["\\"' + b"[" * 10_000 + b'"]') == ""
    assert find_json_problem(b"[]," * 10_000) == ""
    assert "deeper" in find_json_problem(b'{"a":' * 200)
    assert "UTF-8" in find_json_problem(b'"\xff"')


def test_a_string_without_an_end_is_read_once() -> None:
    body = b'"' + b'\\"[' * 1_000_000  # a look from each quote to the end would take days
    assert find_json_problem(body) == "" and find_json_problem(body + b"\\") == ""
