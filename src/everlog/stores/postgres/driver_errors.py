"""What goes wrong with a database, in our errors: the one place where the driver's are mapped.

Nothing of an address that is secret gets into a message: see `Address`.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import psycopg
from psycopg import conninfo

from everlog.errors import (
    EverlogError,
    FormatError,
    SessionBusyError,
    SettingsError,
    StoreFailedError,
    StoreFullError,
)

# Who is refused at the door gets no code, only words.
_REFUSED = re.compile(
    r"authentication failed|no pg_hba\.conf entry"
    r'|(database|role) "[^"]*" (does not exist|is not)'
    r"|no password supplied|permission denied"
)
# What libpq makes of an address, of variables or of a service that it cannot use.
_WRONG = re.compile(
    r'invalid (port number|integer value|"?\w+"? value)|bad value for|could not match \d+'
    r"|(definition of service|service file) .* not found|certificate file|private key file"
    r"|invalid value for parameter|unrecognized configuration parameter"
)
_AT_THE_DOOR = (
    (re.compile(r"the database system is"), "it is starting or stopping: try again soon"),
    (
        re.compile(r"standby mode|is read-only"),
        "it takes no changes: name the primary, or all machines with commas between them",
    ),
    (
        re.compile(r"too many (clients|connections)|connection slots"),
        "fewer connections (postgres.pool_size) or a larger server",
    ),
)
_ASIDE = re.compile(r"\s*Is the server running [^?]*\?")  # which our hint asks too
_ELSEWHERE = ("standby", "prefer-standby", "read-only")  # servers that lag behind
_SHORT = 4  # letters; a password with fewer may be part of any word
_SECRET = ("password", "sslpassword", "oauth_client_secret")
_MIGRATE = "everlog store migrate brings the tables up to date"
_AGAIN = "nothing was acknowledged: try again with the same id"


class ConnectionLost(StoreFailedError):
    """The connection ended before the answer: whether it was done is not known."""


class Contended(StoreFailedError):
    """The database asks for the whole transaction again."""


class Forgotten(Contended):
    """The server does not know a prepared statement any more: nothing was done."""


class ReadOnly(StoreFailedError):
    """The database can be read, and takes no changes."""


class Duplicate(StoreFailedError):
    """A row with the same key is there already."""


def _unreadable() -> SettingsError:
    return SettingsError(
        "the address of the database cannot be read",
        hint="postgresql://user:password@host:5432/name?options; what is neither letter nor digit"
        " in a password is written as its number: %40 for @, %2F for /",
    )


class Address:
    """Where a database is; whatever is shown of it has no password in it."""

    def __init__(self, url: str) -> None:
        try:
            self.facts = {
                key: str(value)
                for key, value in conninfo.conninfo_to_dict(url).items()
                if value is not None
            }
        except psycopg.ProgrammingError:  # whose text has all of the address in it
            raise _unreadable() from None
        # A password with a sign in it that ends a password: the rest of it is read as a place. A
        # host may begin with one (a socket without a file), and a name may have one as %40.
        path = url.partition("://")[2].partition("?")[0].partition("/")[2]
        odd = [path, *(host[1:] for host in self._hosts)]
        if "@" in "".join(odd) or not re.fullmatch(r"[0-9,]*", self.facts.get("port", "")):
            raise _unreadable()
        wanted = self.facts.get("target_session_attrs", "")
        if wanted in _ELSEWHERE:
            raise SettingsError(
                f"{self}: sessions are where changes are made (target_session_attrs={wanted})",
                hint="leave it out: the primary is looked for among the machines that are named",
            )
        secrets = {self.facts[key] for key in _SECRET if self.facts.get(key)}
        written = {form for one in secrets for form in (one, quote(one), quote(one, safe=""))}
        hidden = sorted({url, *written}, key=len, reverse=True)
        self._hidden = re.compile("|".join(map(_whole, hidden)))

    def __str__(self) -> str:
        user = self.facts.get("user")
        who = f"{user}@" if user else ""
        hosts = (f"[{one}]" if ":" in one else one for one in self._hosts)
        ports = self.facts.get("port", "").split(",")
        if len(ports) == 1:
            ports *= self.hosts
        where = ",".join(
            f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)
        )
        return f"postgresql://{who}{where}/{self.facts.get('dbname', '')}"

    __repr__ = __str__

    @property
    def _hosts(self) -> list[str]:
        return self.facts.get("host", "").split(",")

    @property
    def hosts(self) -> int:
        """How many it names."""
        return len(self._hosts)

    def conninfo(self, **defaults: str) -> str:
        """What libpq is given: all that the address says, TLS included, over some defaults."""
        # But not the encoding: ours is that of the lines.
        return conninfo.make_conninfo("", **{**defaults, **self.facts, "client_encoding": "UTF8"})

    def clean(self, text: str) -> str:
        """A text of the driver in one line, without what nobody else may see."""
        return " ".join(_ASIDE.sub("", self._hidden.sub("…", text)).split())


def _whole(secret: str) -> str:
    """Where a text has a secret; a very short one not inside of other words."""
    found = re.escape(secret)
    return rf"(?<!\w){found}(?!\w)" if len(secret) < _SHORT else found


def mapped(error: psycopg.Error, address: Address, *, lost: bool = False) -> EverlogError:
    """Any error of the driver as one of ours; `lost`: the connection is gone with it."""
    # By the driver's own words: a password may be one of them.
    raw = str(error)
    said = address.clean(raw) or type(error).__name__
    state = error.sqlstate or ""
    found = _by_state(state, said, address, plan="cached plan" in raw)
    if found is not None and (not lost or isinstance(found, SettingsError)):
        return found
    if lost or state in ("40003", "58000") or state.startswith("08"):
        return ConnectionLost(
            f"the connection to {address} was lost: {said}",
            hint="whether it was stored is not known: try again with the same id",
        )
    if not state and _WRONG.search(raw):
        return SettingsError(
            f"{address} cannot be used as it is given: {said}",
            hint="look at the address, its options, and the variables of libpq (PGPORT …)",
        )
    if isinstance(error, psycopg.OperationalError) and not state:
        if _REFUSED.search(raw):
            return SettingsError(
                f"{address} does not let us in: {said}", hint="look at user, password and database"
            )
        hint = next(
            (words for sign, words in _AT_THE_DOOR if sign.search(raw)),
            "is the server running, and the address right?",
        )
        return StoreFailedError(f"{address} cannot be reached: {said}", hint=hint)
    return StoreFailedError(f"{address} refused: {said}", hint=_AGAIN)


def _by_state(state: str, said: str, address: Address, *, plan: bool) -> EverlogError | None:
    """By the code that the server gave; `plan`: it speaks of one that it has kept."""
    if state in ("26000", "42P05") or (state == "0A000" and plan):
        return Forgotten(f"{address} has forgotten a statement: {said}", hint=_AGAIN)
    if state in ("40001", "40P01"):
        return Contended(f"others write to the same rows of {address}", hint=_AGAIN)
    if state == "23505":
        return Duplicate(f"{address} has such a row already: {said}")
    if state == "53100":
        return StoreFullError(
            f"{address} is full: {said}", hint="make room; reading still works until then"
        )
    if state.startswith("53"):
        return StoreFailedError(
            f"{address} has nothing left to give: {said}",
            hint="fewer connections (postgres.pool_size) or a larger server",
        )
    if state == "25006":
        return ReadOnly(
            f"{address} takes no changes: {said}", hint="is it a standby, or set to read-only?"
        )
    if state == "55P03":
        return SessionBusyError(f"another writer holds rows of {address}: {said}", hint=_AGAIN)
    if state == "57014":
        return StoreFailedError(
            f"{address} took too long: {said}", hint="postgres.statement_seconds is the limit"
        )
    if state.startswith(("57P", "58", "XX")) and state != "58000":
        return StoreFailedError(f"{address} is not available: {said}", hint=_AGAIN)
    if state.startswith("28") or state in ("3D000", "42501"):
        return SettingsError(
            f"{address} does not let us in: {said}", hint="look at user, password and database"
        )
    if state in ("42P01", "42703", "3F000", "42883", "42704"):
        return SettingsError(f"{address} lacks a table: {said}", hint=_MIGRATE)
    if state.startswith(("22", "54")):  # 54: no index or column has room for it
        return FormatError(f"{address} cannot hold a value: {said}")
    return None
