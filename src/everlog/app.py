"""The wiring: the only module that names concrete stores, formats and providers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from everlog import ports
from everlog.context.tokens import TokenCounter, estimate_text, exact_counter
from everlog.errors import NotFoundError, SettingsError, StoreFailedError, StoreFullError
from everlog.interop import locations
from everlog.interop.locations import Location
from everlog.ports import Progress
from everlog.session import Store
from everlog.settings import FurtherStoreSettings, Settings, convert, parse

if TYPE_CHECKING:
    from everlog.agent.tools import Function
    from everlog.aio import AsyncStore
    from everlog.interop.foreign.foreign_store import ForeignStore
    from everlog.interop.formats.foreign_format import ForeignFormat
    from everlog.model import UsageRow
    from everlog.ports import Provider, Toolset, Transferable
    from everlog.runtime.runtime import Runtime
    from everlog.stores.postgres.postgres_store import PostgresStore

DEFAULT_HOME = "~/.everlog"


def default_home() -> str:
    """Return our own directory: EVERLOG_HOME, or `~/.everlog`."""
    return os.environ.get("EVERLOG_HOME") or DEFAULT_HOME


def open_store(
    location: str | os.PathLike[str] | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    create: bool = False,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Store:
    """Open a store by its location: a directory, `FORMAT:DIR`, `postgresql://…`, or "memory:".

    A directory without a format may be a native store, or hold sessions of another program: what is
    in it decides. Without a location it is EVERLOG_STORE, or `[store] location` of the settings, or
    the `home` itself. The home is our own directory, with the settings, memory and everything that
    is derived from sessions of other programs: EVERLOG_HOME, or `~/.everlog`. A directory that does
    not exist raises NotFoundError; with `create` it is made. Only the default home is made without.
    `progress` is called with (done, total) while many sessions are indexed for the first time. A
    database is connected to on first use.
    """
    home_directory = _home_directory(home)
    own_settings = settings or load_settings(home_directory)
    found = _find_location(location, home_directory, own_settings, create=create)
    if found.directory == home_directory:
        _check_home(home_directory)
    if found.kind == "memory":
        from everlog.stores.in_memory import InMemoryStore  # noqa: PLC0415

        return _make_store(InMemoryStore(own_settings), own_settings)
    if found.kind == "database":
        database = _database(found.address, own_settings)
        port: ports.Store = database
        address = database.sharing.address
    else:
        port = _open_directory(found, home_directory, own_settings, progress)
        address = str(found.directory.resolve())
    if own_settings.stores:
        port = _join_stores(port, home_directory, own_settings, progress)
    return _make_store(port, own_settings, address)


def _home_directory(home: str | os.PathLike[str] | None) -> Path:
    text = os.fspath(home) if home is not None else default_home()
    if text == "memory:" or "://" in text:  # not quoted: it may have a password
        raise SettingsError("the home must be a directory", hint="give that location as the store")
    return locations.directory(text)


def _check_home(home: Path) -> None:
    """Refuse a home in which another program has its sessions: our files would be among them."""
    if locations.holds_foreign_sessions(home, load_formats):
        raise SettingsError(
            f"the home {home} holds sessions of another program",
            hint=f"open them with --store {home}, and have our own files elsewhere: --home, EVERLOG_HOME",
        )


def _find_location(
    location: str | os.PathLike[str] | None, home: Path, settings: Settings, *, create: bool = False
) -> Location:
    """Return a location whose kind is known."""
    text = os.fspath(location) if location is not None else os.environ.get("EVERLOG_STORE") or settings.store.location
    found = locations.parse_location(text, FORMATS) if text else Location("native", directory=home)
    if create and found.kind not in ("database", "memory"):
        _make_directory(found.directory)
    if not text and is_default_home(home):
        return found
    if not text and not home.exists():
        raise NotFoundError(f"there is no directory {home}", hint=f"everlog --home {home} store init makes it")
    return locations.detect(found, load_formats, create=create)


def is_default_home(home: Path) -> bool:
    """Return whether a directory is the home that is made when it is missing."""
    return home == locations.directory(default_home())


def locate(location: str | None, *, home: Path) -> list[Location]:
    """Return where the store is, and the further stores of the settings."""
    settings = load_settings(home)
    further = [_parse_further(entry) for entry in settings.stores]
    return [_find_location(location, home, settings), *further]


def unrecognised_files(store: Store) -> Sequence[ports.SkippedFile]:
    """Return the files of a directory that holds no store of ours, with the reason why they are no sessions."""
    return locations.unrecognised_files(Path(store.location), load_formats) if store.location else ()


def _make_directory(path: Path) -> None:
    from everlog.stores.file.disk import map_errors  # noqa: PLC0415

    with map_errors(f"making {path}"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _open_directory(location: Location, home: Path, settings: Settings, progress: Progress | None) -> ports.Store:
    if location.kind == "foreign":
        return _open_foreign(location, home, settings, progress)
    return _open_files(location.directory, settings, progress)


def _open_files(root: Path, settings: Settings, progress: Progress | None) -> ports.Store:
    """Open a native store."""
    try:
        from everlog.stores.file.file_store import FileStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name == "fcntl":
            raise SettingsError("everlog keeps files on Linux and macOS only") from error
        raise
    from everlog.stores.file.layout import legacy_files  # noqa: PLC0415 - as the store itself

    port = FileStore(root, settings, progress=progress)
    # The sessions directory is searched only the first time: it costs by their number.
    files = legacy_files(root) if (root / "index.db").exists() else legacy_files(root, root / "sessions")
    if not files:
        return port
    from everlog.interop.legacy_json import adopt_files  # noqa: PLC0415 - few stores have such files

    return adopt_files(port, files, settings)


def init_store(location: str | None = None, *, home: str | os.PathLike[str] | None = None) -> str:
    """Make the directory or the tables of a store, and return what was made; making it again changes nothing."""
    home_directory = _home_directory(home)
    found = _find_location(location, home_directory, load_settings(home_directory), create=True)
    if found.kind == "database":
        migrate_database(location, home=home_directory)
        return "the tables of the database"
    if found.kind == "memory":
        raise SettingsError("a store in memory is made by each program that opens it")
    if found.kind == "native":
        from everlog.stores.file.layout import Root  # noqa: PLC0415

        Root(found.directory, durable=True).prepare()
    return str(found.directory)


def migrate_database(location: str | None, *, home: str | os.PathLike[str] | None = None) -> tuple[int, int] | None:
    """Migrate the tables of a database to this version; return the old and the new version, None for files."""
    home_directory = _home_directory(home)
    settings = load_settings(home_directory)
    found = _find_location(location, home_directory, settings)
    if found.kind != "database":
        return None
    store = _database(found.address, settings)
    try:
        return store.migrate()
    finally:
        store.close()


def open_transferable(
    location: str | None,
    *,
    home: str | os.PathLike[str] | None = None,
    create: bool = False,
    progress: Progress | None = None,
) -> Transferable:
    """Open a store that sessions can be copied to and from: a native directory, or a database."""
    home_directory = _home_directory(home)
    settings = replace(load_settings(home_directory), stores=())  # without the directories of others
    found = _find_location(location, home_directory, settings, create=create)
    if found.kind == "memory":
        raise SettingsError("a store in memory cannot be copied")
    if found.kind == "foreign":
        raise SettingsError(
            f"{found.directory} holds sessions of another program", hint="import them with everlog import"
        )
    port = open_store(location, home=home_directory, create=create, settings=settings, progress=progress).port
    transferable = port.capability(ports.Transferable)
    if transferable is None:
        raise SettingsError(f"{location} has old files that could not be imported", hint="make it writable first")
    return transferable


def _database(address: str, settings: Settings) -> PostgresStore:
    """Open the store on a database; no error repeats its address."""
    try:
        from everlog.stores.postgres.postgres_store import PostgresStore  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"a store on PostgreSQL needs {error.name}", hint="pip install 'everlog[postgres]'"
        ) from error
    return PostgresStore(address, settings)


def _open_foreign(location: Location, home: Path, settings: Settings, progress: Progress | None) -> ports.Store:
    """Open the store on a foreign directory; everything derived is below `home`."""
    from everlog.interop.foreign.foreign_store import ForeignStore  # noqa: PLC0415 - few stores are foreign
    from everlog.stores.file.file_store import FileStore  # noqa: PLC0415

    real = location.directory.resolve()
    if home.resolve().is_relative_to(real):
        raise SettingsError(
            f"{home} is inside the foreign directory {real}",
            hint="our own files must be elsewhere: set EVERLOG_HOME, or give another --home",
        )
    _check_home(home)
    name = locations.home_name(real)
    derived, companions = home / "live" / name, home / "companion" / name
    formats = load_formats(*(FORMATS if location.format in ("", locations.AUTO) else (location.format,)))
    with suppress(StoreFullError, StoreFailedError):  # then it is only read, and needs neither
        for path in (home, companions.parent):  # one made on the way would be open to others
            _make_directory(path)
    # Neither has limits of its own: those of the foreign format apply.
    session = replace(settings.session, total_bytes=0, line_bytes=1 << 40)

    def archive_files(paths: Sequence[Path]) -> object:
        from everlog.interop.archive.backup import copy  # noqa: PLC0415 - only before a reclaim

        return copy(home, paths)

    def open_files(root: Path, derived: Path) -> ForeignStore:
        # Legacy documents are shown only; what is written goes into the files that they become.
        directory = companions if root == real else derived / "companion"
        return ForeignStore(
            root,
            formats,
            # A mirror is derived: what a power cut takes of it is read again.
            FileStore(derived, replace(settings, session=replace(session, durability="os"))),
            derived,
            companion=directory,
            companion_store=FileStore(directory, replace(settings, session=session)),
            detects_format=not location.format,
            back_up=archive_files,
            settings=settings,
            progress=progress,
        )

    store, view = open_files(real, derived), derived / "legacy"
    if not (view.exists() or ("picoclaw" in (format.NAME for format in formats) and next(real.glob("*.json"), None))):
        return store
    from everlog.interop.legacy_workspace import join_documents  # noqa: PLC0415 - few directories have such files

    return join_documents(store, view, open_files)


def _join_stores(port: ports.Store, home: Path, settings: Settings, progress: Progress | None) -> ports.Store:
    """Join a store with the further ones that the settings name."""
    from everlog.interop.joined_store import FurtherStore, JoinedStore  # noqa: PLC0415 - few settings name any

    further = []
    for entry in settings.stores:
        found = _parse_further(entry)
        mode = entry.mode or ("read" if found.kind == "foreign" else "write")
        store = _open_directory(found, home, settings, progress)
        further.append(FurtherStore(store, found.directory, is_writable=mode == "write"))
    return JoinedStore(port, further)


def _parse_further(entry: FurtherStoreSettings) -> Location:
    found = locations.parse_location(entry.location, FORMATS)
    if found.kind in ("memory", "database"):
        raise SettingsError("[[stores]] takes directories", hint="name a database as the store: --store, [store]")
    try:
        return locations.detect(found, load_formats)
    except NotFoundError:  # reported when it is read: it must not hide the other stores
        return found._replace(kind="foreign", format=found.format or locations.AUTO)


def _make_store(port: ports.Store, settings: Settings, location: str = "") -> Store:
    """Make a store with its providers and its ephemeral twin."""
    store = Store(
        port,
        settings,
        make_counter(settings),
        location=location,
        # Looked up at each call: a daemon may have reloaded the settings.
        provider=lambda model: provider(model, store.settings),
        ephemeral=lambda: open_store("memory:", settings=store.settings),
    )
    return store


def provider(model: str, settings: Settings) -> Provider:
    """Return the provider of a model, which is named `provider:name`, or `offline`."""
    if model == "offline":
        from everlog.providers.offline_model import OfflineModel  # noqa: PLC0415 - one of several

        return OfflineModel()
    from everlog.providers.models import connect  # noqa: PLC0415 - one of several

    return connect(model, settings)


def estimate_price(row: UsageRow) -> float | None:
    """Estimate what tokens cost by the price lists of providers; None for an unknown model."""
    from everlog.providers.prices import estimate_cost  # noqa: PLC0415 - few show costs

    return estimate_cost(row)


def make_toolsets(settings: Settings) -> dict[str, Toolset]:
    """Return the MCP servers of the settings; each is connected to on first use."""
    enabled = {name: server for name, server in settings.mcp.items() if server.enabled}
    if not enabled:
        return {}
    from everlog.providers.mcp_tools import McpServer  # noqa: PLC0415 - few have any

    return {name: McpServer(name, one) for name, one in enabled.items()}


def open_runtime(
    location: str | os.PathLike[str] | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    create: bool = False,
    settings: Settings | None = None,
    tools: Iterable[Function] = (),
    hooks: Iterable[object] = (),
    progress: Progress | None = None,
) -> Runtime:
    """Open a runtime: turns, queues, cron and memory over a store. Call it in a running loop.

    The location and the home are those of `open_store`: sessions are in the one, memory and the
    states of cron jobs in the other. Every agent gets the `tools` and `hooks`. A runtime on
    "memory:" without a home keeps no memory.
    """
    from everlog.aio import AsyncStore  # noqa: PLC0415 - anyio takes long to load
    from everlog.runtime.runtime import Runtime  # noqa: PLC0415
    from everlog.runtime.shared_jobs import JobState  # noqa: PLC0415
    from everlog.stores.file.json_file import JsonFile  # noqa: PLC0415

    async_store = AsyncStore(open_store(location, home=home, create=create, settings=settings, progress=progress))
    toolboxes: dict[str, Any] = {"toolsets": make_toolsets, "tools": tools, "hooks": hooks}
    if location == "memory:" and home is None:
        return Runtime(async_store, **toolboxes, kind="memory")
    home_directory = _home_directory(home)
    job_file: JsonFile[Mapping[str, JobState]] = JsonFile(home_directory / "run" / "cron.json", dict[str, JobState])
    is_shared = async_store.sync.port.capability(ports.SharedBetweenMachines) is not None
    return Runtime(
        async_store,
        **toolboxes,
        home=home_directory,
        job_states=job_file.load({}),
        save=job_file.save,
        kind=locations.DATABASE_SCHEMES[0] if is_shared else "files",
    )


def open_async_store(
    location: str | os.PathLike[str] | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    create: bool = False,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> AsyncStore:
    """Open a store for asynchronous code; see `open_store`."""
    from everlog.aio import AsyncStore  # noqa: PLC0415 - anyio takes long to load

    return AsyncStore(open_store(location, home=home, create=create, settings=settings, progress=progress))


# In the order of detection: the first of those that are the most sure of a file. CrabTalk knows a file
# that has lost its first line by its name, Cersei takes bare messages under any name.
FORMATS = ("claude", "crabtalk", "cersei", "pi", "codex", "gemini", "picoclaw")


def load_formats(*names: str) -> list[ForeignFormat]:
    """Load the formats of other programs by name; without names, all of them."""
    from importlib import import_module  # noqa: PLC0415 - each is loaded when it is needed

    return [import_module(f"everlog.interop.formats.{name}").FORMAT for name in names or FORMATS]


def make_counter(settings: Settings) -> TokenCounter:
    """Return the token counter: an estimate, or exact by a vocabulary."""
    name = settings.tokens.counter
    return estimate_text if name == "estimate" else exact_counter(name)


def load_settings(home: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Load the settings of a home: its config.toml, overridden by the environment."""
    env = os.environ if environment is None else environment
    file = home / "config.toml"
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
            text = opened.read().decode()
    except FileNotFoundError:
        return convert({}, env)
    except (OSError, UnicodeDecodeError) as error:
        link = " (no symbolic link is followed inside a home)" if file.is_symlink() else ""
        raise SettingsError(f"{file}: {error}{link}") from error
    return parse(text, env, origin=str(file))
