"""`everlog sessions import`, `export` and `migrate`: from and to the files of other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import json_option, open_root, root_option, session_argument

if TYPE_CHECKING:
    from everlog.interop.formats.format_types import Written
    from everlog.interop.importer import Imported

READABLE = ("auto", "claude", "codex", "cersei", "crabtalk", "gemini", "picoclaw", "pi")
WRITABLE = ("native", "claude", "cersei", "crabtalk", "picoclaw", "pi", "md", "html", "json")


@click.command("import")
@click.argument(
    "paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--format", "name", type=click.Choice(READABLE), default="auto", help="Only this format."
)
@json_option
@root_option()
def import_(paths: tuple[Path, ...], name: str, as_json: bool) -> int:
    """Import the sessions of other programs: files, or folders that are searched for them.

    Which format a file has is seen by its content. The source is not changed; nothing of a
    session is left out, and what is damaged is kept and named. Importing again adds only what is
    new.
    """
    from everlog.app import load_formats
    from everlog.interop.importer import find_files, import_files

    files = find_files(paths)
    known = load_formats() if name == "auto" else load_formats(name)
    with open_root() as store, output.progress("importing files") as tell:
        done = list(import_files(store.port, files, known, progress=tell))
    left = [one for one in done if one.problem]
    if as_json:
        output.put_json({"files": done})
    else:
        for one in done:
            if not one.problem:
                _put(one)
        if not files:
            output.note("no files were found")
    sys.stdout.flush()
    for one in left:
        output.warn(f"left {output.one_line(one.path)}: {output.one_line(one.problem)}")
    return 1 if left else 0


def _put(one: Imported) -> None:
    name = output.one_line(Path(one.path).name)
    new = f"{one.added} new" if one.added != one.records_out else "all new"
    print(f"{name} → {one.id}, {one.format}: {output.plural(one.records_out, 'record')}, {new}")
    for child in one.children:
        count = output.plural(child.records_out, "record")
        print(f"  {output.one_line(child.path)} → {child.id}, {count}")
    for text in (*one.lost, *(text for child in one.children for text in child.lost)):
        output.warn(f"{name}: {output.one_line(text)}")


@click.command()
@session_argument
@click.option("--format", "name", type=click.Choice(WRITABLE), required=True, help="Which format.")
@click.option(
    "--output",
    "-o",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder to write to; default: this one.",
)
@click.option(
    "--redact/--no-redact",
    default=True,
    help="Cover up tokens and passwords in md and html (default), or keep them.",
)
@json_option
@root_option()
def export(*, session_id: str, name: str, folder: Path, redact: bool, as_json: bool) -> None:
    """Write a session as files of another program, or as a page to read (md, html).

    A session that came from that program goes back as it was, with what was added. What the
    format cannot hold is named. Files that are there already are not written over.
    """
    from everlog.app import load_formats
    from everlog.errors import ConflictError
    from everlog.interop import exporter

    with open_root() as store:
        session = store.session(session_id)
        written: Written
        if name == "native":
            written = exporter.native(session)
        elif name == "json":
            written = exporter.plain(session)
        elif name in ("md", "html"):
            written, covered = exporter.document(session, name, redacted=redact)
            if covered:
                output.note(
                    f"{output.plural(covered, 'secret')} covered up (--no-redact keeps them)"
                )
        else:
            written = exporter.export(session, *load_formats(name))
    there = [path for path in written.files if (folder / path).exists()]
    if there:
        raise ConflictError(f"{folder / there[0]} is there already", hint="give another --output")
    for path, data in written.files.items():
        target = folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with target.open("xb") as opened:
            opened.write(data)
        target.chmod(0o600)
    files = [str(folder / path) for path in written.files]
    if as_json:
        output.put_json({"files": files, "lost": written.lost})
        return
    for file in files:
        print(output.one_line(file))
    sys.stdout.flush()
    for text in written.lost:
        output.warn(f"left out: {output.one_line(text)}")


@click.command()
@click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@json_option
@root_option()
def migrate(directory: Path, as_json: bool) -> int:
    """Import the old session files of a directory, one JSON document each.

    Each x.json is renamed to x.json.migrated when its session is on the disk and was read back
    equal; a file that cannot be imported is left and named. Running it again changes nothing.
    """
    from everlog.interop.legacy_import import migrate as run
    from everlog.stores.file.layout import legacy_files

    files = legacy_files(directory)
    with open_root() as store, output.progress("importing files") as tell:
        done = run(store.port, files, progress=tell)
    left = [one for one in done if one.problem]
    if as_json:
        output.put_json({"files": done})
    else:
        for one in done:
            if not one.problem:
                name = output.one_line(Path(one.path).name)
                print(f"{name} → {one.id}, {output.plural(one.records_out, 'record')}")
        if not files:
            output.note(f"no old session files in {directory}")
    sys.stdout.flush()
    for one in left:
        output.warn(f"left {output.one_line(one.path)}: {output.one_line(one.problem)}")
    return 1 if left else 0
