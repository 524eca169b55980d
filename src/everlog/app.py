"""The wiring: the only file that names concrete stores and providers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from everlog import ports
from everlog.context.tokens import Counter, estimate_text, exact
from everlog.errors import FormatError, SettingsError, StoreFailedError, StoreFullError
from everlog.session import Store
from everlog.settings import Settings, convert, parse

if TYPE_CHECKING:
    from everlog.aio import AsyncStore
    from everlog.interop.formats.format_types import Format
    from everlog.model import UsageRow
    from everlog.ports import Provider, Toolset
    from everlog.runtime.runtime import Runtime
    from everlog.stores.file.file_store import FileStore
    from everlog.stores.postgres.postgres_store import PostgresStore

DEFAULT_ROOT = "~/.everlog"
DATABASES = ("postgresql", "postgres")  # what the address of one begins with


def open_store(
    where: str | os.PathLike[str] = DEFAULT_ROOT,
    *,
    dialect: str | None = None,
    home: str | os.PathLike[str] = DEFAULT_ROOT,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Store:
    """A store by its address: a directory, `postgresql://…`, or "memory:" for one that forgets.

    The directory may be that of another program: `dialect` is its format (claude, cersei,
    crabtalk, picoclaw, pi), or "auto" for what each file shows itself to be. Without it, a
    directory that holds such files and nothing of ours is taken for one. Then `home` is the root
    of ours with the settings, and with what is derived. `progress` is told (done, total) while
    many sessions are indexed for the first time. A database is connected to when it is first
    used; its settings too are those of `home`.
    """
    address = os.fspath(where)
    check_address(address)
    if address == "memory:":
        from everlog.stores.in_memory import InMemoryStore  # noqa: PLC0415

        chosen = settings or convert({}, os.environ)
        return _store(InMemoryStore(chosen), chosen)
    if "://" in address:
        chosen = settings or load_settings(_directory(os.fspath(home)))
        if chosen.stores:
            raise SettingsError(
                "directories of other programs ([[stores]]) stand beside a root of files, and the"
                " sessions are in a database",
                hint="take [[stores]] out of config.toml; such a directory can be opened by itself,"
                " and everlog sessions import takes what is in it",
            )
        return _store(_database(address, chosen), chosen)
    try:
        from everlog.stores.file.file_store import FileStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name == "fcntl":
            raise SettingsError("everlog keeps files on Linux and macOS only") from error
        raise
    root = _directory(address)
    if dialect not in (None, "native") or (dialect is None and is_foreign(root)):
        if not root.is_dir():
            raise StoreFailedError(
                f"{root} is no directory", hint="sessions of others are only found"
            )
        ours = _directory(os.fspath(home))
        chosen = settings or load_settings(ours)
        return _store(_live(root, dialect or "auto", ours, chosen, progress), chosen)
    chosen = settings or load_settings(root)
    port: ports.Store = FileStore(root, chosen, progress=progress)
    if old := _legacy_files(root):
        port = _with_legacy(cast("FileStore", port), old, chosen)
    if chosen.stores:
        port = _joined(port, root, chosen, progress)
    return _store(port, chosen)


def migrate_database(
    address: str, *, home: str | os.PathLike[str] = DEFAULT_ROOT
) -> tuple[int, int]:
    """Bring the tables of a database to this version; from which, to which."""
    check_address(address)
    opened = _database(address, load_settings(_directory(os.fspath(home))))
    try:
        return opened.migrate()
    finally:
        opened.close()


def open_home(
    where: str,
    *,
    home: str | os.PathLike[str] = DEFAULT_ROOT,
    progress: Callable[[int, int], None] | None = None,
) -> FileStore | PostgresStore:
    """A store that whole sessions can be moved to and from: a directory of ours, or a database."""
    if where == "memory:":
        raise SettingsError("what is in memory cannot be moved")
    check_address(where)
    if "://" in where:
        return _database(where, load_settings(_directory(os.fspath(home))))
    if is_foreign(_directory(where)):
        raise SettingsError(
            f"{where} holds sessions of another program", hint="everlog sessions import takes them"
        )
    port = open_store(where, dialect="native", home=home, progress=progress).port
    port = getattr(port, "own", port)  # without the directories of others
    if not hasattr(port, "adopt"):
        raise SettingsError(
            f"{where} has old files that could not be moved", hint="make it writable first"
        )
    return cast("FileStore | PostgresStore", port)


def check_address(address: str) -> None:
    """Refuse what libpq takes for an address and we would take for a directory.

    It is not repeated, since a password may be in it.
    """
    if re.match(r"\w+\s*=", address):
        raise SettingsError(
            "the address of a database is a URL, and was given as words with = between them",
            hint="postgresql://user@host:5432/name; a directory with = in its name: ./name",
        )


def _database(address: str, settings: Settings) -> PostgresStore:
    """The store on a database; whatever is wrong with an address, it is not repeated."""
    scheme = address.partition("://")[0]
    if scheme not in DATABASES:
        raise SettingsError(
            f"no store is known for {scheme[:60]!r} addresses",
            hint="give a directory, postgresql://… or memory:",
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


def _live(
    root: Path,
    dialect: str,
    home: Path,
    settings: Settings,
    progress: Callable[[int, int], None] | None,
) -> ports.Store:
    """The store on a directory of another program; what is derived lies below `home`."""
    from hashlib import sha256  # noqa: PLC0415 - few stores are foreign

    from everlog.interop.foreign.foreign_store import ForeignStore  # noqa: PLC0415
    from everlog.stores.file.disk import errors_mapped  # noqa: PLC0415
    from everlog.stores.file.file_store import FileStore  # noqa: PLC0415

    known = LIVE_FORMATS if dialect == "auto" else (dialect,)
    if unknown := set(known) - set(LIVE_FORMATS):
        raise SettingsError(
            f"no dialect is called {unknown.pop()!r}",
            hint=f"one of {', '.join(LIVE_FORMATS)}, auto",
        )
    real = root.resolve()
    if home.resolve().is_relative_to(real):
        raise SettingsError(
            f"{home} is in the directory of another program",
            hint="what is derived goes elsewhere: set EVERLOG_ROOT, or give another home",
        )
    ours = home / "live" / sha256(os.fsencode(real)).hexdigest()[:16]
    with errors_mapped(f"making {ours}"):
        for one in (home, home / "live"):  # a parent that is made on the way is open to others
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A mirror has no limits of its own: those of the format count.
    session = replace(settings.session, total_bytes=0, line_bytes=1 << 40)
    mirror = FileStore(ours, replace(settings, session=session))
    formats = cast("list[LiveFormat]", load_formats(*known))

    def keep(paths: Sequence[Path]) -> object:
        from everlog.interop.archive.backup import copy  # noqa: PLC0415 - only before lines go

        return copy(home, paths)

    return ForeignStore(real, formats, mirror, ours, keep=keep, progress=progress)


def is_foreign(root: Path) -> bool:
    """Whether a directory holds sessions of another program, and nothing of ours."""
    if not root.is_dir() or any((root / name).exists() for name in _OURS):
        return False
    from everlog.interop.importer import find_files, recognise  # noqa: PLC0415 - not for every store

    formats = load_formats(*LIVE_FORMATS)
    files = (file for file in find_files([root]) if file.suffix == ".jsonl")
    with suppress(OSError):
        return any(recognise(file, formats) for file in islice(files, 20))
    return False


def _joined(
    port: ports.Store,
    root: Path,
    settings: Settings,
    progress: Callable[[int, int], None] | None,
) -> ports.Store:
    """A root with the directories of others that its settings name."""
    from everlog.interop.joined_store import JoinedStore  # noqa: PLC0415 - few settings name any

    others = [
        _live(_directory(one.path), one.dialect, root, settings, progress)
        for one in settings.stores
    ]
    return JoinedStore(port, others)


def _store(port: ports.Store, settings: Settings) -> Store:
    """A store with everything that is found through it."""
    made = Store(
        port,
        settings,
        counter(settings),
        # The settings of the moment: a daemon may have read them again.
        provider=lambda model: provider(model, made.settings),
        ephemeral=lambda: open_store("memory:", settings=made.settings),
    )
    return made


def provider(model: str, settings: Settings) -> Provider:
    """What completes contexts with a model, named `provider:name`, or `offline`."""
    if model == "offline":
        from everlog.providers.offline_model import OfflineModel  # noqa: PLC0415 - one of several

        return OfflineModel()
    from everlog.providers.models import connect  # noqa: PLC0415 - likewise

    return connect(model, settings)


def price(spent: UsageRow) -> float | None:
    """What tokens would cost by the providers' lists; None if the model is on none."""
    from everlog.providers.prices import estimate  # noqa: PLC0415 - only who shows costs

    return estimate(spent)


def toolsets(settings: Settings) -> dict[str, Toolset]:
    """The MCP servers of the settings; none is connected to before its tools are needed."""
    enabled = {name: one for name, one in settings.mcp.items() if one.enabled}
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
    progress: Callable[[int, int], None] | None = None,
) -> Runtime:
    """Everything that goes on over a root: turns, queues, cron. To be called in a running loop.

    `store` is the address of a database, or the directory of another program with its `dialect`,
    that has the sessions in place of the root.
    """
    from everlog.aio import AsyncStore  # noqa: PLC0415 - asyncio takes 50 ms to load
    from everlog.runtime.cron import Fared  # noqa: PLC0415
    from everlog.runtime.runtime import Runtime  # noqa: PLC0415
    from everlog.stores.file.json_file import Notebook  # noqa: PLC0415

    opened = AsyncStore(
        open_store(store or root, dialect=dialect, home=root, settings=settings, progress=progress)
    )
    if os.fspath(root) == "memory:":
        return Runtime(opened, toolsets=toolsets, kind="memory")
    notebook: Notebook[Mapping[str, Fared]] = Notebook(
        Path(root).expanduser() / "run" / "cron.json", dict[str, Fared]
    )
    return Runtime(
        opened,
        toolsets=toolsets,
        root=Path(root).expanduser(),
        fared=notebook.load({}),
        save=notebook.save,
        kind="files" if "://" not in (store or "") else DATABASES[0],
    )


def _legacy_files(root: Path) -> list[Path]:
    """Files of an older program that lie here.

    Also among the sessions, but only the first time: looking there costs by their number.
    """
    from everlog.stores.file.layout import legacy_files  # noqa: PLC0415 - as the store itself

    known = (root / "index.db").exists()
    return legacy_files(root) if known else legacy_files(root, root / "sessions")


def _with_legacy(port: FileStore, files: list[Path], settings: Settings) -> ports.Store:
    """The store with old files brought into it, or, if it cannot be written, those files."""
    from everlog.interop.formats.picoclaw.messages import NoSession  # noqa: PLC0415
    from everlog.interop.legacy_import import migrate, read_file  # noqa: PLC0415 - few roots have such files
    from everlog.interop.legacy_json import LegacyStore  # noqa: PLC0415

    documents = {}
    for file in files:
        try:
            document = read_file(file)
            if document.certain:  # what only looks like one is not touched unasked
                documents[file] = document
        except NoSession:
            continue
        except (FormatError, OSError) as error:
            port.reports.append(f"{file.name} is left as it is: {error}")
    try:
        for one in migrate(port, list(documents)):
            if one.problem:
                port.reports.append(f"{Path(one.path).name} is left as it is: {one.problem}")
        return port
    except (StoreFullError, StoreFailedError) as error:
        port.close()
        left = {file: document for file, document in documents.items() if file.exists()}
        legacy = LegacyStore(files[0].parent, left, settings)
        legacy.reports.append(f"old files are used where they lie: {error.message}")
        return legacy


def open_async_store(
    where: str | os.PathLike[str] = DEFAULT_ROOT, *, settings: Settings | None = None
) -> AsyncStore:
    """The same for asynchronous code."""
    from everlog.aio import AsyncStore  # noqa: PLC0415 - asyncio takes 50 ms to load

    return AsyncStore(open_store(where, settings=settings))


# In the order in which a file is tried; each is told apart from the others by its content.
FORMATS = ("claude", "cersei", "pi", "crabtalk", "codex", "gemini", "picoclaw")
LIVE_FORMATS = ("claude", "cersei", "pi", "crabtalk", "picoclaw")  # those whose files are used live
_OURS = ("sessions", "index.db", "config.toml", "run")  # by which a root of ours is known


def load_formats(*names: str) -> list[Format]:
    """The formats of other programs, by name; without names, all."""
    from importlib import import_module  # noqa: PLC0415 - each is loaded when it is needed

    return [
        cast("Format", import_module(f"everlog.interop.formats.{name}"))
        for name in names or FORMATS
    ]


def counter(settings: Settings) -> Counter:
    """How tokens are counted: estimated, or by a real vocabulary."""
    name = settings.tokens.counter
    return estimate_text if name == "estimate" else exact(name)


def load_settings(root: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a root: its config.toml under the environment's overrides."""
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
