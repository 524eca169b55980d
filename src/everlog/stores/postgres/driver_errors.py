"""Errors of the database driver, mapped to those of everlog; nowhere else are they mapped.

No secret of an address appears in a message: see `Address`.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import psycopg
from psycopg import conninfo

from everlog.errors import EverlogError, FormatError, SessionBusyError, SettingsError, StoreFailedError, StoreFullError

# A refused connection has no SQLSTATE, only a message.
_REFUSED = re.compile(
    r"authentication failed|no pg_hba\.conf entry"
    r'|(database|role) "[^"]*" (does not exist|is not)'
    r"|no password supplied|permission denied"
)
# What libpq says of an address, variables or a service that it cannot use.
_INVALID = re.compile(
    r'invalid (port number|integer value|"?\w+"? value)|bad value for|could not match \d+'
    r"|(definition of service|service file) .* not found|certificate file|private key file"
    r"|invalid value for parameter|unrecognized configuration parameter"
)
_CONNECT_HINTS = (
    (re.compile(r"the database system is"), "it is starting or stopping: retry soon"),
    (re.compile(r"standby mode|is read-only"), "it is read-only: name the primary, or all hosts separated by commas"),
    (
        re.compile(r"too many (clients|connections)|connection slots"),
        "lower postgres.pool_size, or use a larger server",
    ),
)
_SERVER_QUESTION = re.compile(r"\s*Is the server running [^?]*\?")  # our hint asks this too
_STANDBY_ATTRS = ("standby", "prefer-standby", "read-only")  # they may lag behind
_SHORT_SECRET = 4  # characters; a shorter password may be part of any word
_SECRET_PARAMS = ("password", "sslpassword", "oauth_client_secret")
_MIGRATE_HINT = "everlog store migrate brings the tables up to date"
_RETRY_HINT = "nothing was acknowledged: retry with the same id"


class ConnectionLostError(StoreFailedError):
    """The connection ended before the answer: the outcome is unknown."""


class ContentionError(StoreFailedError):
    """The database asks to repeat the whole transaction."""


class StatementLostError(ContentionError):
    """The server no longer has a prepared statement: nothing was done."""


class ReadOnlyError(StoreFailedError):
    """The database is read-only."""


class DuplicateRowError(StoreFailedError):
    """A row with the same key exists."""


def _unreadable_address() -> SettingsError:
    return SettingsError(
        "the database address cannot be parsed",
        hint="postgresql://user:password@host:5432/name?options; percent-encode special characters"
        " in a password: %40 for @, %2F for /",
    )


class Address:
    """The address of a database; its text form contains no password."""

    def __init__(self, url: str) -> None:
        try:
            self.params = {
                key: str(value) for key, value in conninfo.conninfo_to_dict(url).items() if value is not None
            }
        except psycopg.ProgrammingError:  # its text contains the whole address
            raise _unreadable_address() from None
        # An unescaped "@" or "/" ends a password; its remainder would pass for a host or a name. A
        # host may begin with "@" (an abstract socket), and a name may contain it as %40.
        path = url.partition("://")[2].partition("?")[0].partition("/")[2]
        suspects = [path, *(host[1:] for host in self._hosts)]
        if "@" in "".join(suspects) or not re.fullmatch(r"[0-9,]*", self.params.get("port", "")):
            raise _unreadable_address()
        attrs = self.params.get("target_session_attrs", "")
        if attrs in _STANDBY_ATTRS:
            raise SettingsError(
                f"{self}: a standby cannot be used (target_session_attrs={attrs})",
                hint="omit it: the primary is found among the hosts in the address",
            )
        secrets = {self.params[key] for key in _SECRET_PARAMS if self.params.get(key)}
        spellings = {form for text in secrets for form in (text, quote(text), quote(text, safe=""))}
        secret_texts = sorted({url, *spellings}, key=len, reverse=True)
        self._secret_pattern = re.compile("|".join(map(_pattern_for, secret_texts)))

    def __str__(self) -> str:
        user = self.params.get("user")
        user_prefix = f"{user}@" if user else ""
        hosts = (f"[{host}]" if ":" in host else host for host in self._hosts)
        ports = self.params.get("port", "").split(",")
        if len(ports) == 1:
            ports *= self.host_count
        hosts_and_ports = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
        return f"postgresql://{user_prefix}{hosts_and_ports}/{self.params.get('dbname', '')}"

    __repr__ = __str__

    @property
    def _hosts(self) -> list[str]:
        return self.params.get("host", "").split(",")

    @property
    def host_count(self) -> int:
        """Return how many hosts the address names."""
        return len(self._hosts)

    def conninfo(self, **defaults: str) -> str:
        """Return libpq's parameters: those of the address, TLS included, over some defaults."""
        # But not the encoding: lines are UTF-8.
        return conninfo.make_conninfo("", **{**defaults, **self.params, "client_encoding": "UTF8"})

    def redact(self, text: str) -> str:
        """Return a message of the driver in one line, without secrets."""
        return " ".join(_SERVER_QUESTION.sub("", self._secret_pattern.sub("…", text)).split())


def _pattern_for(secret: str) -> str:
    """Return the pattern of a secret; a very short one matches only as a whole word."""
    escaped = re.escape(secret)
    return rf"(?<!\w){escaped}(?!\w)" if len(secret) < _SHORT_SECRET else escaped


def map_error(error: psycopg.Error, address: Address, *, lost: bool = False) -> EverlogError:
    """Map an error of the driver; `lost`: the connection is closed or broken."""
    # Match the driver's own text: redaction may have changed it.
    raw = str(error)
    message = address.redact(raw) or type(error).__name__
    state = error.sqlstate or ""
    known_error = _map_sqlstate(state, message, address, cached_plan="cached plan" in raw)
    if known_error is not None and (not lost or isinstance(known_error, SettingsError)):
        return known_error
    if lost or state in ("40003", "58000") or state.startswith("08"):
        return ConnectionLostError(
            f"the connection to {address} was lost: {message}",
            hint="it may or may not be stored: retry with the same id",
        )
    if not state and _INVALID.search(raw):
        return SettingsError(
            f"{address} is not a valid address: {message}",
            hint="check the address, its options, and libpq's variables (PGPORT …)",
        )
    if isinstance(error, psycopg.OperationalError) and not state:
        if _REFUSED.search(raw):
            return SettingsError(f"{address} denied access: {message}", hint="check user, password and database")
        hint = next(
            (words for sign, words in _CONNECT_HINTS if sign.search(raw)),
            "is the server running, and the address right?",
        )
        return StoreFailedError(f"{address} cannot be reached: {message}", hint=hint)
    return StoreFailedError(f"{address} refused: {message}", hint=_RETRY_HINT)


# By SQLSTATE, the first that matches: what it becomes, its text about the address and the driver's message, a hint.
_BY_STATE: tuple[tuple[str, type[EverlogError], str, str], ...] = (
    ("40001|40P01", ContentionError, "other processes write to the same rows of {}", _RETRY_HINT),
    ("23505", DuplicateRowError, "{} already has such a row: {}", ""),
    ("53100", StoreFullError, "{} is full: {}", "free disk space; reading still works"),
    ("53...", StoreFailedError, "{} is out of resources: {}", "lower postgres.pool_size, or use a larger server"),
    ("25006", ReadOnlyError, "{} is read-only: {}", "is it a standby, or set to read-only?"),
    ("55P03", SessionBusyError, "another process has locked rows of {}: {}", _RETRY_HINT),
    ("57014", StoreFailedError, "{} took too long: {}", "the limit is postgres.statement_seconds"),
    ("57P..|58(?!000)...|XX...", StoreFailedError, "{} is not available: {}", _RETRY_HINT),
    ("28...|3D000|42501", SettingsError, "{} denied access: {}", "check user, password and database"),
    ("42P01|42703|3F000|42883|42704", SettingsError, "{} lacks a table: {}", _MIGRATE_HINT),
    ("22...|54...", FormatError, "{} cannot store a value: {}", ""),  # 54: too large for an index or a column
)


def _map_sqlstate(state: str, message: str, address: Address, *, cached_plan: bool) -> EverlogError | None:
    """Map by SQLSTATE; `cached_plan`: the message mentions a cached plan. None if unknown."""
    if state in ("26000", "42P05") or (state == "0A000" and cached_plan):
        return StatementLostError(f"{address} lost a prepared statement: {message}", hint=_RETRY_HINT)
    for states, kind, text, hint in _BY_STATE:
        if re.fullmatch(states, state):
            return kind(text.format(address, message), hint=hint)
    return None
