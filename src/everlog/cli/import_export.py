"""`everlog import` and `everlog export`: sessions from and to files of any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from everlog.cli import output
from everlog.cli.options import command, open_chosen_store, open_session, session_argument

if TYPE_CHECKING:
    from everlog.interop.formats.format_types import ExportedFiles
    from everlog.interop.importer import ImportResult
    from everlog.interop.legacy_import import MigrationResult
    from everlog.ports import SkippedFile

READABLE = ("auto", "claude", "codex", "cersei", "crabtalk", "gemini", "picoclaw", "pi")
R = TypeVar("R", "ImportResult", "MigrationResult")
WRITABLE = ("native", "claude", "cersei", "crabtalk", "picoclaw", "pi", "md", "html", "json")


@command("import")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--format", "name", type=click.Choice(READABLE), default="auto", help="Import only files of this format.")
def import_(paths: tuple[Path, ...], name: str, as_json: bool) -> int:
    """Import sessions of other programs from files or folders.

    The format is detected from a file's content. The source is not changed. Sessions are imported
    completely; damaged lines are kept and reported. Importing again adds only new records. Two
    files with the same id that say different things become two sessions. Files that are not
    sessions are named with the reason.
    """
    from everlog.app import load_formats
    from everlog.interop.importer import import_files
    from everlog.interop.transcript_sources import find_files

    formats = load_formats() if name == "auto" else load_formats(name)
    files, skipped = find_files(paths, formats)
    with open_chosen_store() as store, output.progress("importing files") as on_progress:
        results = list(import_files(store.port, files, formats, progress=on_progress))
    return _print_results(results, _print_imported, "no files were found", as_json, skipped)


def _print_imported(result: ImportResult) -> None:
    name = output.one_line(Path(result.path).name)
    print(f"{name} → {result.id}, {result.format}: {_describe_counts(result)}")
    for child in result.children:
        print(f"  {output.one_line(child.path)} → {child.id}: {_describe_counts(child)}")
    for item in (result, *result.children):
        if item.differs_from is not None:
            output.warn(f"{name}: goes another way than {item.differs_from}, so it is a session of its own")
        for text in item.problems:
            output.warn(f"{name}: {text}")


def _describe_counts(result: ImportResult) -> str:
    records = output.plural(result.records_in, "record")
    counts = {"new": result.stored, "already there": result.already_there, "LOST": result.lost}
    shown = [f"{count} {word}" for word, count in counts.items() if count]
    return f"{records}, {', '.join(shown) if result.stored != result.records_in else 'all new'}"


def _print_results(
    results: Sequence[R],
    print_result: Callable[[R], None],
    none_found: str,
    as_json: bool,
    others: Sequence[SkippedFile] = (),
) -> int:
    """Print the result of each file, then those that were skipped; return the exit code.

    `others` are files that nobody would take for a session: they are named, and are no failure.
    """
    failures = [result for result in results if result.problem]
    if as_json:
        output.print_json({"files": results, **({"skipped": others} if others else {})})
    else:
        for result in results:
            if not result.problem:
                print_result(result)
        if not results and not others:
            output.info(none_found)
    for result in failures:
        output.warn(f"skipped {result.path}: {result.problem}")
    for file in () if as_json else others:
        output.info(f"skipped {output.one_line(file.path)}: {file.reason}")
    return 1 if failures else 0


@command()
@session_argument
@click.option("--format", "name", type=click.Choice(WRITABLE), required=True, help="Choose the format to write.")
@click.option(
    "--output",
    "-o",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Write to this folder; default: the current one.",
)
@click.option(
    "--redact/--no-redact", default=True, help="Redact tokens and passwords in md and html (default), or keep them."
)
def export(*, session_id: str, name: str, folder: Path, redact: bool, as_json: bool) -> None:
    """Export a session to another format.

    The formats are those of other programs, or pages to read (md, html). A session that came from
    a program is written back unchanged, plus what was added since. Content that the format cannot
    hold is reported. Existing files are not overwritten.
    """
    from everlog.app import load_formats
    from everlog.errors import ConflictError
    from everlog.interop import exporter

    with open_session(session_id) as session:
        written: ExportedFiles
        if name == "native":
            written = exporter.export_native(session)
        elif name == "json":
            written = exporter.export_json(session)
        elif name in ("md", "html"):
            written, covered = exporter.export_document(session, name, redacted=redact)
            if covered:
                output.info(f"{output.plural(covered, 'secret')} redacted (--no-redact keeps them)")
        else:
            written = exporter.export(session, *load_formats(name))
    if not as_json:
        for text in written.losses:  # before anything is written
            output.warn(f"left out: {text}")
    existing = [path for path in written.files if (folder / path).exists()]
    if existing:
        raise ConflictError(f"{folder / existing[0]} already exists", hint="use another --output")
    for path, data in written.files.items():
        target = folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with target.open("xb") as stream:
            stream.write(data)
        target.chmod(0o600)
    files = [str(folder / path) for path in written.files]
    if as_json:
        output.print_json({"files": files, "lost": written.losses})
        return
    for file in files:
        print(output.one_line(file))


@command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
def migrate(directory: Path, as_json: bool) -> int:
    """Import legacy JSON session files from a directory.

    Each x.json is renamed to x.json.migrated once its session is on disk and was read back equal.
    A file that cannot be imported is reported and left in place. Running it again changes nothing.
    """
    from everlog.interop.legacy_import import migrate as run
    from everlog.stores.file.layout import legacy_files

    files = legacy_files(directory)
    with open_chosen_store() as store, output.progress("importing files") as on_progress:
        results = run(store.port, files, progress=on_progress)
    return _print_results(results, _print_migrated, f"no legacy session files in {directory}", as_json)


def _print_migrated(result: MigrationResult) -> None:
    name = output.one_line(Path(result.path).name)
    print(f"{name} → {result.id}, {output.plural(result.records_out, 'record')}")
