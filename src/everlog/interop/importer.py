"""Importing foreign sessions into a store.

Every record has an id that is derived from its source, and an imported session is found again by
its id in its format. So importing twice adds nothing, a file that has grown adds its new records,
and an interrupted run continues where it stopped. A file with the same id whose messages went
another way is another session, with a key of its own. The source is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from everlog.errors import EverlogError, FormatError
from everlog.identity.key import own_aliases
from everlog.ids import is_name
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import DamagedBytes, ForeignSession, HiddenMessages, ListingScan, derive_id
from everlog.interop.formats.picoclaw.lines import NAME as LEGACY_FORMAT
from everlog.interop.import_result import ImportResult
from everlog.interop.import_target import ImportTarget, hide_before_summaries
from everlog.interop.legacy_import import read_legacy_session
from everlog.interop.transcript_sources import FileSource, detect_format, explain_file
from everlog.model import SETTABLE, Meta
from everlog.ports import Store

PROGRAM_TITLE = "programTitle"  # in the metadata: the title that the session's program gave it


def import_files(
    store: Store,
    files: Sequence[Path],
    formats: Sequence[ForeignFormat],
    *,
    progress: Callable[[int, int], None] | None = None,
    origin: Callable[[Path], Path] = Path,
) -> Iterator[ImportResult]:
    """Import each file that a format recognises; the result of any other has a problem.

    `origin` returns where a file is for its own program, if it is read from a copy.
    """
    for number, file in enumerate(files, 1):
        try:
            yield replace(_import_file(store, file, formats, origin(file).absolute()), path=str(origin(file)))
        except EverlogError as error:
            yield ImportResult(path=str(origin(file)), problem=str(error))
        except OSError as error:
            yield ImportResult(path=str(origin(file)), problem=error.strerror or str(error))
        if progress is not None:
            progress(number, len(files))


def _import_file(store: Store, file: Path, formats: Sequence[ForeignFormat], origin: Path) -> ImportResult:
    format = detect_format(file, formats)
    if format is not None:
        source = format.read(FileSource(file, has_parts=format.PART_BYTES > 0))
        # Where the file is, its own program can go on with it.
        command = format.resume_command(ListingScan(program_id=source.session_id), str(origin))
        if command:
            source = replace(source, metadata={**source.metadata, "resume": command})
        return import_session(store, format, source)
    legacy = next((format for format in formats if format.NAME == LEGACY_FORMAT), None)
    session = read_legacy_session(file) if legacy is not None and file.suffix == ".json" else None
    if legacy is None or session is None:
        raise FormatError(explain_file(file, formats))
    return import_session(store, legacy, session)


def import_session(
    store: Store, format: ForeignFormat, source: ForeignSession, parent: str | None = None
) -> ImportResult:
    """Import one session with its subagents' sessions."""
    target, first = _find_target(store, format, source)
    session = target.session
    before = store.metadata(session)
    extra = {key: value for key, value in source.metadata.items() if key not in SETTABLE}
    title = "" if target.is_beginning else str(source.metadata.get("name") or "")
    if title:
        extra[PROGRAM_TITLE] = title
    if parent is not None:
        extra["parent"] = {**extra.get("parent", {}), "id": parent}
    if extra:
        target.add(Meta(set=extra, id=derive_id(source.session_id, repr(sorted(extra.items())))))
    items = source.items
    # Not that a branch was left, which follows from others; an older copy does not say which one it is by now.
    records = [item for item in items if not isinstance(item, HiddenMessages) or item.extra]
    for item in records if target.is_beginning else hide_before_summaries(source.session_id, items):
        target.add(item)
    target.flush()
    # A title that the program has changed since is taken over, unless somebody gave another one here.
    if title and before.title != title and before.title in (None, "", before.extra.get(PROGRAM_TITLE)):
        store.update(session, {"name": title})
    stored, already_there = target.count(records)
    return ImportResult(
        path=source.session_id,
        id=session,
        format=format.NAME,
        messages=(after := store.metadata(session).message_count),
        new_messages=after - before.message_count,
        records_in=len(records),
        stored=stored,
        already_there=already_there,
        lost=len(records) - stored - already_there,
        problems=(*map(_describe_damage, source.damage), *target.problems),
        differs_from=first if first != session else None,
        children=tuple(import_session(store, format, child, session) for child in source.children),
    )


def _describe_damage(damage: DamagedBytes) -> str:
    return f"{damage.path}, bytes {damage.start} to {damage.end}: {damage.problem}"


def _find_target(store: Store, format: ForeignFormat, source: ForeignSession) -> tuple[ImportTarget, str]:
    """Return the session of this conversation, created if there is none, and the first with its id.

    Its key is its id in its format; a conversation that has the same id and went another way has
    the next free `id~2`, `id~3`…. Its key, or else its id, and its aliases become aliases, unless another
    session holds them, or they are those of a main session: an import never goes into that session.
    """
    name = f"{format.NAME}:{source.session_id}"
    if not is_name(f"{name}~999"):
        raise FormatError(f"not a valid session name: {name[:60]!r}")
    metadata = {key: value for key, value in source.metadata.items() if key in SETTABLE}
    metadata.pop("model", None)  # it is only that of the answers
    # Without a key of its own, it is found by its id in its program too.
    key = metadata.pop("key", "")
    names = (key or source.session_id, *own_aliases(key, metadata.pop("aliases", ())))
    free_names = [alias for alias in dict.fromkeys(names) if is_name(alias) and _is_free(store, alias)]
    metadata |= {"aliases": free_names, "source": metadata.get("source", format.NAME)}
    number, first = 1, ""
    while True:
        metadata["key"] = name if number == 1 else f"{name}~{number}"
        session = store.create(metadata, unless_held=True, at=source.created_ms or None).id
        first = first or session
        target = ImportTarget(store, session, format=format)
        if target.match(source.items):
            return target, first
        number += 1


def _is_free(store: Store, name: str) -> bool:
    try:
        return name not in store.metadata(store.resolve(name)).names
    except EverlogError:  # no session's name, or an ambiguous prefix of ids
        return True
