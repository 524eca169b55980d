"""`everlog import` and `everlog export`: sessions from and to files of any format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import command, open_chosen_store, open_session, session_argument

if TYPE_CHECKING:
    from everlog.interop.formats.format_types import ExportedFiles
    from everlog.interop.import_paths import ImportReport
    from everlog.interop.import_result import ImportResult

READABLE = ("auto", "native", "claude", "codex", "cersei", "crabtalk", "gemini", "picoclaw", "pi")
WRITABLE = ("native", "ulid", "claude", "cersei", "crabtalk", "picoclaw", "pi", "md", "html", "json")


@command("import")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--format", "name", type=click.Choice(READABLE), default="auto", help="Import only files of this format.")
def import_(paths: tuple[Path, ...], name: str, as_json: bool) -> int:
    """Import sessions from files or folders, whatever wrote them.

    Takes sessions of other programs, legacy JSON files, sessions of everlog (a home, a copy of one,
    an export as native or json) and an archive. The format is detected from a file's content. The
    source is not changed. Damaged lines are kept and reported. Importing again adds only what is
    new. Two files with the same id that say different things become two sessions. Files that are
    not sessions are named with the reason.
    """
    from everlog.app import load_formats
    from everlog.interop.import_paths import import_paths

    formats = () if name == "native" else load_formats() if name == "auto" else load_formats(name)
    with open_chosen_store() as store, output.progress("importing files") as on_progress:
        is_native = name in ("auto", "native")
        report = import_paths(store.port, paths, formats, native=is_native, progress=on_progress)
    failures = [result for result in report.files if result.problem]
    if as_json:
        output.print_json(report)
    else:
        _print_report(report)
    for result in failures:
        output.warn(f"skipped {result.path}: {result.problem}")
    return 1 if failures else 0


def _print_report(report: ImportReport) -> None:
    for result in report.files:
        if not result.problem:
            _print_imported(result)
    for file in report.skipped:
        output.info(f"skipped {output.one_line(file.path)}: {file.reason}")
    for theirs in report.settings:
        ours = f"write `{theirs.setting}` below [compaction]" if theirs.setting else "see [compaction]"
        value = output.one_line(f"{theirs.key}: {theirs.value}")
        output.info(f"{value} of config.yaml is not taken over ({ours} in config.toml)")
    if not report.files and not report.skipped:
        output.info("no files were found")


def _print_imported(result: ImportResult) -> None:
    name = output.one_line(Path(result.path).name)
    if name == "session.jsonl":
        name = output.one_line(Path(result.path).parent.name)
    print(f"{name} → {result.id}, {result.format}: {_describe_count(result)}")
    for child in result.children:
        print(f"  {output.one_line(child.path)} → {child.id}: {_describe_count(child)}")
    for item in (result, *result.children):
        if item.differs_from is not None:
            output.warn(f"{name}: goes another way than {item.differs_from}, so it is a session of its own")
        if item.lost:
            output.warn(f"{name}: {output.plural(item.lost, 'record')} LOST")
        for text in item.problems:
            output.warn(f"{name}: {text}")


def _describe_count(result: ImportResult) -> str:
    """Return how many messages the session has now, as a listing counts them, and how many are new."""
    new = "all" if result.new_messages == result.messages else result.new_messages or "none"
    return f"{output.plural(result.messages, 'message')}, {new} new"


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
        elif name == "ulid":
            written = exporter.export_ulid(session)
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
