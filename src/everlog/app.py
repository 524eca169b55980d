"""The wiring: the only module that names concrete stores, formats and providers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from everlog import ports
from everlog.context.tokens import TokenCounter, estimate_text, exact_counter
from everlog.errors import FormatError, SettingsError, StoreFailedError, StoreFullError
from everlog.session import Store
from everlog.settings import Settings, convert, parse

if TYPE_CHECKING:
    from everlog.agent.tools import Function
    from everlog.aio import AsyncStore
    from everlog.interop.foreign.foreign_store import ForeignStore
    from everlog.interop.formats.foreign_format import ForeignFormat
    from everlog.model import UsageRow
    from everlog.ports import Provider, Toolset, Transferable
    from everlog.runtime.runtime import Runtime
    from everlog.stores.file.file_store import FileStore
    from everlog.stores.postgres.postgres_store import PostgresStore

DEFAULT_ROOT = "~/.everlog"
DATABASE_SCHEMES = ("postgresql", "postgres")  # what the address of one begins with


def open_store(
    location: str | os.PathLike[str] = DEFAULT_ROOT,
    *,
    dialect: str | None = None,
    home: str | os.PathLike[str] = DEFAULT_ROOT,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Store:
    """Open a store by its location: a directory, `postgresql://…`, or "memory:" for one in RAM.

    The directory may belong to another program: `dialect` is its format (claude, cersei,
    crabtalk, picoclaw, pi, and codex and gemini, which are only read), or "auto" to detect the
    format of each file. Without `dialect`, a directory that holds such files and none of ours is
    opened as foreign. Then `home` is our own directory, with the settings and everything derived.
    `progress` is called with (done, total) while many sessions are indexed for the first time. A
    database is connected to on first use; its settings are those of `home` too.
    """
    address = os.fspath(location)
    check_location(address)
    if address == "memory:":
        from everlog.stores.in_memory import InMemoryStore  # noqa: PLC0415

        chosen_settings = settings or convert({}, os.environ)
        return _make_store(InMemoryStore(chosen_settings), chosen_settings)
    if "://" in address:
        chosen_settings = settings or load_settings(_directory(os.fspath(home)))
        if chosen_settings.stores:
            raise SettingsError(
                "foreign directories ([[stores]]) can only stand beside a store of files, and these"
                " sessions are in a database",
                hint="remove [[stores]] from config.toml, and open such a directory by itself or"
                " import it with everlog sessions import",
            )
        database = _database(address, chosen_settings)
        return _make_store(database, chosen_settings, database.sharing.address)
    try:
        from everlog.stores.file.file_store import FileStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name == "fcntl":
            raise SettingsError("everlog keeps files on Linux and macOS only") from error
        raise
    root = _directory(address)
    if dialect not in (None, "native") or (dialect is None and is_foreign(root)):
        if not root.is_dir():
            raise StoreFailedError(f"{root} is not a directory", hint="a foreign directory is never made")
        home_directory = _directory(os.fspath(home))
        chosen_settings = settings or load_settings(home_directory)
        foreign = _open_foreign(root, dialect or "auto", home_directory, chosen_settings, progress)
        return _make_store(foreign, chosen_settings, str(root.resolve()))
    chosen_settings = settings or load_settings(root)
    port: ports.Store = FileStore(root, chosen_settings, progress=progress)
    if legacy := _legacy_files(root):
        port = _import_legacy(cast("FileStore", port), legacy, chosen_settings)
    if chosen_settings.stores:
        port = _join_stores(port, root, chosen_settings, progress)
    return _make_store(port, chosen_settings, str(root.resolve()))


def migrate_database(address: str, *, home: str | os.PathLike[str] = DEFAULT_ROOT) -> tuple[int, int]:
    """Migrate the tables of a database to this version; returns the old and the new version."""
    check_location(address)
    store = _database(address, load_settings(_directory(os.fspath(home))))
    try:
        return store.migrate()
    finally:
        store.close()


def open_transferable(
    location: str, *, home: str | os.PathLike[str] = DEFAULT_ROOT, progress: Callable[[int, int], None] | None = None
) -> Transferable:
    """Open a store that sessions can be copied to and from: a native directory, or a database."""
    if location == "memory:":
        raise SettingsError("a store in memory cannot be copied")
    check_location(location)
    if "://" in location:
        return _database(location, load_settings(_directory(os.fspath(home))))
    if is_foreign(_directory(location)):
        raise SettingsError(
            f"{location} holds sessions of another program", hint="import them with everlog sessions import"
        )
    port = open_store(location, dialect="native", home=home, progress=progress).port
    transferable = port.capability(ports.Transferable)  # without the directories of others
    if transferable is None:
        raise SettingsError(f"{location} has old files that could not be imported", hint="make it writable first")
    return transferable


def check_location(location: str) -> None:
    """Refuse a libpq connection string, which would be taken for a directory.

    The error does not repeat it, since it may contain a password.
    """
    if re.match(r"\w+\s*=", location):
        raise SettingsError(
            "a database location must be a URL, not a libpq connection string",
            hint="postgresql://user@host:5432/name; a directory with = in its name: ./name",
        )


def _database(address: str, settings: Settings) -> PostgresStore:
    """Open the store on a database; no error repeats its address."""
    scheme = address.partition("://")[0]
    if scheme not in DATABASE_SCHEMES:
        raise SettingsError(
            f"unknown kind of location: {scheme[:60]!r}", hint="use a directory, postgresql://… or memory:"
        )
    try:
        from everlog.stores.postgres.postgres_store import PostgresStore  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"a store on PostgreSQL needs {error.name}", hint="pip install 'everlog[postgres]'"
        ) from error
    return PostgresStore(address, settings)


def _directory(address: str) -> Path:
    try:
        return Path(address).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{address}: {error}") from error


def _open_foreign(
    root: Path, dialect: str, home: Path, settings: Settings, progress: Callable[[int, int], None] | None
) -> ForeignStore:
    """Open the store on a foreign directory; everything derived is below `home`."""
    from hashlib import sha256  # noqa: PLC0415 - few stores are foreign

    from everlog.interop.foreign.foreign_store import ForeignStore  # noqa: PLC0415
    from everlog.stores.file.disk import map_errors  # noqa: PLC0415
    from everlog.stores.file.file_store import FileStore  # noqa: PLC0415

    names = FORMATS if dialect == "auto" else (dialect,)
    if unknown := set(names) - set(FORMATS):
        raise SettingsError(f"no dialect is called {unknown.pop()!r}", hint=f"one of {', '.join(FORMATS)}, auto")
    real = root.resolve()
    if home.resolve().is_relative_to(real):
        raise SettingsError(
            f"{home} is inside the foreign directory {real}",
            hint="our own files must be elsewhere: set EVERLOG_ROOT, or give another home",
        )
    derived = home / "live" / sha256(os.fsencode(real)).hexdigest()[:16]
    with map_errors(f"making {derived}"):
        for directory in (home, home / "live"):  # a parent made on the way would be open to others
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A mirror has no limits of its own: those of the foreign format apply.
    session = replace(settings.session, total_bytes=0, line_bytes=1 << 40)
    mirror = FileStore(derived, replace(settings, session=session))
    formats = load_formats(*names)

    def archive_files(paths: Sequence[Path]) -> object:
        from everlog.interop.archive.backup import copy  # noqa: PLC0415 - only before a reclaim

        return copy(home, paths)

    return ForeignStore(real, formats, mirror, derived, back_up=archive_files, settings=settings, progress=progress)


def is_foreign(root: Path) -> bool:
    """Tell whether a directory holds sessions of another program and no native store."""
    if not root.is_dir() or _is_native(root):
        return False
    from everlog.interop.transcript_sources import detect_format, find_files  # noqa: PLC0415 - not for every store

    formats = load_formats()
    files = (file for file in find_files([root])[0] if file.suffix == ".jsonl")
    with suppress(OSError):
        return any(detect_format(file, formats) for file in islice(files, 20))
    return False


def _is_native(root: Path) -> bool:
    """Tell whether a directory is a native store. Other programs too have `sessions` and `config.toml`."""
    if any((root / name).exists() for name in _NATIVE_NAMES):
        return True
    if not (root / "sessions").exists():
        return (root / "config.toml").exists()  # of a root that has only been configured
    from everlog.stores.file.layout import Root  # noqa: PLC0415 - as the store itself

    return Root(root, durable=False).exists()


def unrecognised_files(root: Path) -> Sequence[ports.SkippedFile]:
    """Return the files of a directory that holds no store of ours, with the reason why they are no sessions."""
    if not root.is_dir() or _is_native(root):
        return ()
    from everlog.interop.transcript_sources import explain_file, find_files  # noqa: PLC0415 - not for every store

    files, skipped = find_files([root])
    formats = load_formats()
    return [*skipped, *(ports.SkippedFile(str(file), explain_file(file, formats)) for file in files)]


def _join_stores(
    port: ports.Store, root: Path, settings: Settings, progress: Callable[[int, int], None] | None
) -> ports.Store:
    """Join a native store with the foreign directories that its settings name."""
    from everlog.interop.joined_store import JoinedStore  # noqa: PLC0415 - few settings name any

    foreign = [
        _open_foreign(_directory(entry.path), entry.dialect, root, settings, progress) for entry in settings.stores
    ]
    return JoinedStore(port, foreign)


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
    root: str | os.PathLike[str] = DEFAULT_ROOT,
    *,
    store: str | None = None,
    dialect: str = "native",
    settings: Settings | None = None,
    tools: Iterable[Function] = (),
    hooks: Iterable[object] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Runtime:
    """Open a runtime: turns, queues, cron and memory over a store. Call it in a running loop.

    `store` is the location of a database, or of a foreign directory with its `dialect`, that holds
    the sessions in place of `root`. Every agent gets the `tools` and `hooks`.
    """
    from everlog.aio import AsyncStore  # noqa: PLC0415 - anyio takes long to load
    from everlog.runtime.runtime import Runtime  # noqa: PLC0415
    from everlog.runtime.shared_jobs import JobState  # noqa: PLC0415
    from everlog.stores.file.json_file import JsonFile  # noqa: PLC0415

    async_store = AsyncStore(
        open_store(store or root, dialect=dialect, home=root, settings=settings, progress=progress)
    )
    if os.fspath(root) == "memory:":
        return Runtime(async_store, toolsets=make_toolsets, tools=tools, hooks=hooks, kind="memory")
    job_file: JsonFile[Mapping[str, JobState]] = JsonFile(
        Path(root).expanduser() / "run" / "cron.json", dict[str, JobState]
    )
    return Runtime(
        async_store,
        toolsets=make_toolsets,
        tools=tools,
        hooks=hooks,
        root=Path(root).expanduser(),
        job_states=job_file.load({}),
        save=job_file.save,
        kind="files" if "://" not in (store or "") else DATABASE_SCHEMES[0],
    )


def _legacy_files(root: Path) -> list[Path]:
    """Return files of an older program in this directory.

    The sessions directory is searched only the first time: it costs by their number.
    """
    from everlog.stores.file.layout import legacy_files  # noqa: PLC0415 - as the store itself

    is_indexed = (root / "index.db").exists()
    return legacy_files(root) if is_indexed else legacy_files(root, root / "sessions")


def _import_legacy(port: FileStore, files: list[Path], settings: Settings) -> ports.Store:
    """Import old files into the store; if it cannot be written, return a store on those files."""
    from everlog.interop.formats.picoclaw.messages import NotASessionError  # noqa: PLC0415
    from everlog.interop.legacy_import import migrate, read_file  # noqa: PLC0415 - few roots have such files
    from everlog.interop.legacy_json import LegacyStore  # noqa: PLC0415

    documents = {}
    for file in files:
        try:
            document = read_file(file)
            if document.is_certain:  # what only looks like one is left alone
                documents[file] = document
        except NotASessionError:
            continue
        except (FormatError, OSError) as error:
            port.reports.append(f"{file.name} was not imported: {error}")
    try:
        for result in migrate(port, list(documents)):
            if result.problem:
                port.reports.append(f"{Path(result.path).name} was not imported: {result.problem}")
        return port
    except (StoreFullError, StoreFailedError) as error:
        port.close()
        remaining = {file: document for file, document in documents.items() if file.exists()}
        legacy = LegacyStore(files[0].parent, remaining, settings)
        legacy.reports.append(f"old files are used in place: {error.message}")
        return legacy


def open_async_store(
    location: str | os.PathLike[str] = DEFAULT_ROOT,
    *,
    dialect: str | None = None,
    home: str | os.PathLike[str] = DEFAULT_ROOT,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AsyncStore:
    """Open a store for asynchronous code; see `open_store`."""
    from everlog.aio import AsyncStore  # noqa: PLC0415 - anyio takes long to load

    return AsyncStore(open_store(location, dialect=dialect, home=home, settings=settings, progress=progress))


# In the order of detection: the first of those that are the most sure of a file. CrabTalk knows a file
# that has lost its first line by its name, Cersei takes bare messages under any name.
FORMATS = ("claude", "crabtalk", "cersei", "pi", "codex", "gemini", "picoclaw")
_NATIVE_NAMES = ("run", "live", "names.lock", "archive/manifests")  # which only a native store has


def load_formats(*names: str) -> list[ForeignFormat]:
    """Load the formats of other programs by name; without names, all of them."""
    from importlib import import_module  # noqa: PLC0415 - each is loaded when it is needed

    return [import_module(f"everlog.interop.formats.{name}").FORMAT for name in names or FORMATS]


def make_counter(settings: Settings) -> TokenCounter:
    """Return the token counter: an estimate, or exact by a vocabulary."""
    name = settings.tokens.counter
    return estimate_text if name == "estimate" else exact_counter(name)


def load_settings(root: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Load the settings of a root: its config.toml, overridden by the environment."""
    env = os.environ if environment is None else environment
    file = root / "config.toml"
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
            text = opened.read().decode()
    except FileNotFoundError:
        return convert({}, env)
    except (OSError, UnicodeDecodeError) as error:
        link = " (no symbolic link is followed inside a root)" if file.is_symlink() else ""
        raise SettingsError(f"{file}: {error}{link}") from error
    return parse(text, env, origin=str(file))
