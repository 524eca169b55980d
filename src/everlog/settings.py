"""Settings: `{home}/config.toml`, overridden by `EVERLOG_<TABLE>_<KEY>`, typed and validated.

A variable holds a value as text; for a list or a table it holds JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from everlog.errors import SettingsError

DIMENSIONS = ("space", "chat", "topic", "sender")
DmScope = Literal["per-channel-peer", "per-channel", "per-peer", "global"]


class Table(msgspec.Struct, frozen=True):
    """A table of settings. Its values are checked however it is made, in TOML or in Python."""

    def __post_init__(self) -> None:
        for name, kind in _fields(type(self)):
            value = getattr(self, name)
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                accepted = _accepted(kind)
                problem = f" must be {accepted}, not {value!r}" if accepted else f": {error}"
                raise SettingsError(f"{type(self).__name__}.{name}{problem}") from error


@cache
def _fields(table: type[Table]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(table))


def _accepted(kind: Any) -> str:
    """Describe the accepted values of a setting; empty if its type says it all."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if type(None) in arguments:
        return _accepted(arguments[0])
    if get_origin(kind) is not Annotated:
        return ""
    base, limits = arguments[0], arguments[1]
    words = {int: "a whole number", float: "a number"}.get(base, "text")
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "pattern": "matching"}
    bounds = [f"{sign} {value}" for key, sign in signs.items() if (value := getattr(limits, key)) is not None]
    return f"{words} {' and '.join(bounds)}"


class SessionSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[session]`: how sessions are kept, and which messages share one."""

    durability: Literal["always", "os"] = "always"  # fdatasync before return, or the kernel's time
    part_bytes: Annotated[int, msgspec.Meta(ge=1)] = 50_000_000
    total_bytes: Annotated[int, msgspec.Meta(ge=0)] = 200_000_000  # 0: no limit
    line_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16_000_000
    lock_seconds: Annotated[float, msgspec.Meta(ge=0)] = 5.0  # how long an append waits for another
    dimensions: tuple[str, ...] | None = None  # None: as dm_scope says, else chat; (): none
    dm_scope: DmScope | None = None  # older; used where dimensions are not set
    identity_links: dict[str, tuple[str, ...]] = {}  # a person's name → their ids


Strategy = Literal["structured", "rounds", "prose"]


class CompactionSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[compaction]`: when and how a long history is summarised."""

    enabled: bool = True
    strategy: Strategy = "structured"
    # Each of these that is set gives a size above which a context is compacted, and the smallest counts:
    # the window less so many tokens, a share of the window, so many tokens. None: as the strategy says.
    reserve_tokens: Annotated[int, msgspec.Meta(ge=1024)] | None = None
    threshold: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    compact_threshold: Annotated[int, msgspec.Meta(ge=1024)] | None = None
    keep_recent_tokens: Annotated[int, msgspec.Meta(ge=1024)] = 20_000  # by structured: about so many of the newest
    tool_result_budget: Annotated[int, msgspec.Meta(ge=0)] = 50_000  # characters in a context
    model: str = ""  # that summarises; empty: the agent's own
    max_tokens: Annotated[int, msgspec.Meta(ge=256)] = 4_096  # of a summary
    fallback: bool = True  # to the built-in summary when a model's fails
    window: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: as the provider or the model table says


class SearchSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[search]`: what is searched."""

    tool_output: bool = False  # also what tools answered, with secrets covered up


class MemorySettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[memory]`: what outlives sessions, and how much of it is recalled."""

    enabled: bool = True
    recall: Annotated[int, msgspec.Meta(ge=0, le=50)] = 5  # notes and sessions; 0: none
    recall_tokens: Annotated[int, msgspec.Meta(ge=0)] = 2_000  # that they may take
    extract: bool = True  # extract facts from long sessions
    dream: bool = True  # consolidate the notes from time to time
    dream_hours: Annotated[float, msgspec.Meta(ge=0)] = 24.0  # at least, between two
    dream_sessions: Annotated[int, msgspec.Meta(ge=0)] = 5  # new ones, at least
    dream_schedule: str = "30 3 * * *"  # also then, as a cron job has it; empty: after turns only


class TokenSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[tokens]`: how tokens are counted."""

    # By the built-in estimate, or exactly, by a vocabulary of the extra `everlog[tokens]`.
    counter: Literal["estimate", "o200k_base", "cl100k_base"] = "estimate"


class DispatchWhen(Table, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The conditions of a rule; an empty field matches any value."""

    channel: str = ""
    account: str = ""
    space: str = ""  # type:id
    chat: str = ""  # type:id
    topic: str = ""  # topic:id
    sender: str = ""  # the canonical one, where a link applies
    mentioned: bool | None = None


class DispatchRule(Table, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[[dispatch.rules]]`: messages that go to an agent, or to sessions by other dimensions."""

    name: str = ""
    agent: str = ""  # empty: the default agent
    when: DispatchWhen = DispatchWhen()
    session_dimensions: tuple[str, ...] = ()  # empty: those of [session]


class DispatchSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[dispatch]`: which agent takes a message. The first rule that matches wins."""

    rules: tuple[DispatchRule, ...] = ()


class TurnSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[turn]`: how an agent answers."""

    model: str = "offline"  # provider:name, of every agent that names none itself
    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 20  # model calls of one turn
    waiting: Annotated[int, msgspec.Meta(ge=0)] = 8  # messages beside the one being answered
    tool_seconds: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    tool_characters: Annotated[int, msgspec.Meta(ge=1)] = 200_000  # of an answer that are kept
    model_seconds: Annotated[float, msgspec.Meta(gt=0)] = 600.0  # of one call
    retries: Annotated[int, msgspec.Meta(ge=0)] = 3  # of a call that may succeed later
    retry_seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # before the first; then doubled
    titles: bool = True  # name a session after its first exchange


class AgentSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[agents.NAME]`: what is different for one agent. The order in the file is their order."""

    default: bool = False  # takes what no rule sends elsewhere; without a flag the first does
    model: str = ""  # empty: that of [turn]
    description: str = ""  # shown to the agents that may call it
    system_prompt: str = ""
    members: tuple[str, ...] = ()  # subagents that it may call
    compaction: dict[str, Any] = {}  # any keys of [compaction], set again


class ProviderSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[provider.NAME]`: where the models called NAME:model are."""

    api: str = "openai"  # whose interface it speaks: openai (also Ollama, vLLM), anthropic, google …
    base_url: str = ""  # empty: the provider's own
    api_key: str = ""  # better: the name of a variable that holds it
    api_key_env: str = ""
    window: Annotated[int, msgspec.Meta(ge=0)] = 0  # tokens; 0: as the model table says

    def __repr__(self) -> str:  # it may end up in a traceback
        return f"ProviderSettings(api={self.api!r}, base_url={self.base_url!r}, …)"


class McpSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[mcp.NAME]`: a server whose tools agents may use; a command, or a url."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    agents: tuple[str, ...] = ()  # that may use it; none named: all
    enabled: bool = True

    def __repr__(self) -> str:  # variables and headers hold keys
        return f"McpSettings(command={self.command!r}, url={self.url!r}, …)"


class CronPolicy(Table, frozen=True, forbid_unknown_fields=True):
    """The limits of a scheduled run."""

    allowed_tools: tuple[str, ...] | None = None  # None: those that only read
    max_iterations: Annotated[int, msgspec.Meta(ge=1)] = 10  # model calls


class CronJob(Table, frozen=True, forbid_unknown_fields=True):
    """`[[cron.jobs]]`: a prompt that is sent on a schedule, each time in a new session."""

    id: str
    schedule: str  # five fields: minute hour day month weekday
    prompt: str
    timezone: str = ""  # such as Europe/Berlin; empty: the machine's
    agent: str = ""  # empty: the default agent
    enabled: bool = True
    policy: CronPolicy = CronPolicy()
    system: bool = False  # in the agent's main session instead of a new one


class CronSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[cron]`: scheduled jobs."""

    jobs: tuple[CronJob, ...] = ()


class DaemonSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[daemon]`: how the daemon is reached."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8642  # 0: any that is free
    tls_certificate: str = ""  # file; with tls_key it may listen elsewhere than on this machine
    tls_key: str = ""
    hosts: tuple[str, ...] = ()  # further names by which it is called, without the port
    body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 20_000_000  # of a request
    requests_per_second: Annotated[float, msgspec.Meta(gt=0)] = 200.0  # over a few seconds
    drain_seconds: Annotated[float, msgspec.Meta(ge=0)] = 20.0  # for running turns, at the end
    socket: bool = True  # also speak CrabTalk's protocol, on run/everlog.sock


class PostgresSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[postgres]`: how a database of sessions is used; its address is that of the store."""

    schema: Annotated[str, msgspec.Meta(pattern="^(?!pg_)[a-z_][a-z0-9_]{0,49}$")] = "everlog"
    pool_size: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10  # connections of one process
    # To wait for one of them, or for the server.
    wait_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    # That one statement may take.
    statement_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    # A turn whose process is silent for so long may be taken over by another.
    lease_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 15.0


class StoreSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[store]`: where sessions are."""

    location: str = ""  # DIR, FORMAT:DIR, postgresql://… or memory:; empty: in the home


class FurtherStoreSettings(Table, frozen=True, forbid_unknown_fields=True):
    """`[[stores]]`: sessions elsewhere that are shown and searched beside those of the store."""

    location: str  # DIR or FORMAT:DIR
    # read: nothing is written there. Empty: read for sessions of other programs, else write.
    mode: Literal["", "read", "write"] = ""


class Settings(Table, frozen=True, forbid_unknown_fields=True):
    """All tables."""

    session: SessionSettings = SessionSettings()
    compaction: CompactionSettings = CompactionSettings()
    tokens: TokenSettings = TokenSettings()
    search: SearchSettings = SearchSettings()
    memory: MemorySettings = MemorySettings()
    dispatch: DispatchSettings = DispatchSettings()
    agents: dict[str, AgentSettings] = {}
    turn: TurnSettings = TurnSettings()
    provider: dict[str, ProviderSettings] = {}
    mcp: dict[str, McpSettings] = {}
    cron: CronSettings = CronSettings()
    daemon: DaemonSettings = DaemonSettings()
    postgres: PostgresSettings = PostgresSettings()
    store: StoreSettings = StoreSettings()
    stores: tuple[FurtherStoreSettings, ...] = ()

    def model_of(self, agent: str) -> str:
        """Return the model of an agent, as `provider:name`."""
        return self.agent(agent).model or self.turn.model

    def agent(self, name: str) -> AgentSettings:
        """Return `[agents.NAME]`; the defaults for an agent without a table."""
        settings = self.agents.get(name)
        if settings is None:  # sessions hold names as routing writes them
            alike = (one for key, one in self.agents.items() if key.strip().lower() == name)
            settings = next(alike, None)
        return settings or AgentSettings()

    def compaction_of(self, agent: str) -> CompactionSettings:
        """Return `[compaction]`, overridden by `[agents.NAME.compaction]`."""
        overrides = self.agent(agent).compaction
        if not overrides:
            return self.compaction
        merged = msgspec.structs.asdict(self.compaction) | overrides
        try:
            return msgspec.convert(merged, CompactionSettings)
        except msgspec.ValidationError as error:
            raise SettingsError(f"[agents.{agent}.compaction]: {error}") from error


def parse(text: str, environment: Mapping[str, str], *, origin: str = "config.toml") -> Settings:
    """Parse the text of a configuration file, overridden by the environment."""
    import tomllib  # noqa: PLC0415 - most roots have no configuration file

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{origin}: {error}", hint="fix the TOML syntax") from error
    return convert(data, environment, origin=origin)


def convert(data: dict[str, Any], environment: Mapping[str, str], *, origin: str = "config.toml") -> Settings:
    """Convert tables to settings, overridden by the environment."""
    for table, key, variable, text in _overrides(environment):
        value = _value(variable, text, _TABLES[table][key])
        if not isinstance(data.setdefault(table, {}), dict):
            raise SettingsError(f"{origin}: [{table}] must be a table")
        data[table][key] = value
    _refuse_crabtalk_tables(data, origin)
    try:
        settings = msgspec.convert(data, Settings)
        for agent in settings.agents:
            settings.compaction_of(agent)
        _check_routing(settings)
    except (msgspec.ValidationError, SettingsError) as error:
        raise SettingsError(f"{origin}: {error}", hint="docs/settings.md lists every key") from error
    return settings


def _refuse_crabtalk_tables(data: Mapping[str, Any], origin: str) -> None:
    """Refuse CrabTalk's `[system.NAME]`, naming the table that has its threshold here."""
    tables = data.get("system")
    for name, table in tables.items() if isinstance(tables, dict) else ():
        threshold = table.get("compact_threshold") if isinstance(table, dict) else None
        setting = f"compact_threshold = {threshold}" if threshold is not None else "compact_threshold"
        raise SettingsError(
            f"{origin}: [system.{name}] is a table of CrabTalk's", hint=f"write [agents.{name}.compaction] {setting}"
        )


def _overrides(environment: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Return the variables that override settings; one that names no key is an error."""
    overrides = []
    for variable, text in environment.items():
        prefix, _, name = variable.partition("_")
        table, _, key = name.lower().partition("_")
        if prefix == "EVERLOG" and table in _TABLES and name.startswith(f"{table.upper()}_"):
            if key not in _TABLES[table]:
                raise SettingsError(f"{variable}: [{table}] has no key {key!r}")
            overrides.append((table, key, variable, text))
    return overrides


def _value(variable: str, text: str, kind: Any) -> Any:
    """Parse the text of a variable; for a list or a table it is JSON."""
    if not any(get_origin(one) in (tuple, dict) for one in (kind, *get_args(kind))):
        try:
            return msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{variable}: {error}") from error
    try:
        return msgspec.to_builtins(msgspec.json.decode(text, type=kind))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SettingsError(f"{variable}: {error}", hint="it takes JSON") from error


def _check_routing(settings: Settings) -> None:
    """Refuse what routing would silently ignore, and so put strangers into one session."""
    dimension_settings = {"[session] dimensions": settings.session.dimensions or ()}
    for number, rule in enumerate(settings.dispatch.rules, 1):
        dimension_settings[f"[[dispatch.rules]] {number}: session_dimensions"] = rule.session_dimensions
    for setting, names in dimension_settings.items():
        for name in names:
            if name.strip().lower() not in DIMENSIONS:
                raise SettingsError(f"{setting}: {name!r} is none of {', '.join(DIMENSIONS)}")
    _check_links(settings.session.identity_links)


def _check_links(links: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an id under two names. Routing compares code point by code point, and checks again."""
    owners: dict[str, str] = {}
    for name, ids in links.items():
        for sender_id in ids:
            if not (name.strip() and sender_id.strip()):
                raise SettingsError(f"[session.identity_links] {name!r}: a name or an id is empty")
            owner = owners.setdefault(sender_id.strip().lower(), name)
            if owner.strip().lower() != name.strip().lower():
                raise SettingsError(f"[session.identity_links]: {sender_id!r} is under {owner!r} and {name!r}")


# The tables that variables can override: those that are there once.
_TABLES: dict[str, dict[str, Any]] = {
    name: dict(_fields(kind)) for name, kind in _fields(Settings) if isinstance(kind, type) and issubclass(kind, Table)
}
