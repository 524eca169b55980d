"""`everlog archive`: archive, list, verify and restore session files of other programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import chosen_home, command, limit_option, parse_time

if TYPE_CHECKING:
    from everlog.interop.archive.archive_listing import ArchiveListing
    from everlog.interop.archive.source_scan import Problem

MAX_PROBLEMS = 20  # printed one by one


@command()
@click.argument("sources", metavar="[SOURCE…]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--again", is_flag=True, help="Read unchanged files too; replace damaged objects.")
def add(sources: tuple[Path, ...], again: bool, as_json: bool) -> int:
    """Archive new and changed files.

    Without a SOURCE: the existing sessions of Claude Code, Cersei, Codex, Gemini CLI, pi, CrabTalk
    and PicoClaw, where their environment variables place them. Every byte is kept; links are
    recorded but not followed. A deleted file stays in the archive, and a rewritten file keeps its
    earlier versions.
    """
    from everlog.interop.archive.backup import copy
    from everlog.interop.archive.program_directories import default_sources, with_companions

    paths = with_companions(chosen_home(), sources or default_sources(Path.home(), os.environ))
    with output.progress("archiving") as on_progress:
        report = copy(chosen_home(), paths, skip_missing=not sources, reread=again, progress=on_progress)
    if as_json:
        output.print_json(report)
    elif not report.sources:
        output.info("no folder of a supported program was found (give one: everlog archive DIR)")
    else:
        files = output.plural(report.files, "file")
        counts = f"{report.new:,} new and {report.changed:,} changed of {files}"
        counts += f", {report.gone:,} gone" if report.gone else ""
        read, written = output.size(report.bytes_read), output.size(report.bytes_written)
        print(f"{counts}: {read} read, {written} written")
        if report.links:
            output.info(f"{output.plural(report.links, 'link')} recorded but not followed")
        if report.special:
            output.info(f"{output.plural(report.special, 'special file')} skipped")
    return _warn_of_problems(report.problems)


@command("list")
@click.argument("patterns", metavar="[PATTERN…]", nargs=-1)
@limit_option(None, 50, "files")
def list_(patterns: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List the sources, or the files that match a PATTERN.

    Files are listed with their versions. A PATTERN is a path, or the end of one or of a parent
    folder, with *, ? and [ ]: `*.jsonl`, `memory`, `~/.claude/projects/-work`.
    """
    from everlog.interop.archive.archive_listing import list_archive

    result = list_archive(chosen_home(), patterns, limit=limit)
    if as_json:
        output.print_json(result)
    elif not result.sources:
        output.info("the archive is empty (everlog archive add)")
    elif not patterns:
        _print_sources(result)
    else:
        rows = [
            (
                version["sha256"][:12],
                output.format_time(version["at"]),
                output.size(version["size"]),
                f"gone {file.gone[:10]}" if file.gone else "",
                file.path,
            )
            for file in result.files
            for version in file.versions
        ]
        rows += [
            ("link", "", "", f"gone {file.gone[:10]}" if file.gone else "", f"{file.path} → {file.target}")
            for file in result.files
            if file.target is not None
        ]
        titles = ("VERSION", "ARCHIVED", "SIZE", "STATE", "PATH")
        output.print_table(titles, rows, right=("SIZE",))
        if result.matching > len(result.files):
            more = result.matching - len(result.files)
            output.info(f"{more:,} more match (--limit {result.matching})")


def _print_sources(listing: ArchiveListing) -> None:
    rows = [
        (
            source.path,
            f"{source.files:,}",
            f"{source.gone:,}",
            f"{source.versions:,}",
            output.size(source.bytes),
            output.format_time(source.since),
        )
        for source in listing.sources
    ]
    titles = ("SOURCE", "FILES", "GONE", "VERSIONS", "SIZE", "SINCE")
    output.print_table(titles, rows, right=titles[1:5])


@command()
def verify(as_json: bool) -> int:
    """Check every byte of the archive. Exits 1 if there is damage."""
    import msgspec

    from everlog.interop.archive.verify import verify as check

    with output.progress("verifying") as on_progress:
        report = check(chosen_home(), progress=on_progress)
    if as_json:
        output.print_json({"ok": not report.damage, **msgspec.to_builtins(report)})
    elif not report.damage:
        objects = output.plural(report.objects, "object")
        manifests = output.plural(report.manifests, "manifest")
        print(f"{objects} ({output.size(report.bytes)}) and {manifests} verified, no damage")
    else:
        for item in report.damage:
            more = f" and {item.needed_by_count - 1:,} more" if item.needed_by_count > 1 else ""
            needed_by = f" (needed by {item.needed_by[0]}{more})" if item.needed_by else ""
            print(output.one_line(f"{item.file}: {item.problem}{needed_by}"))
    if not report.damage:
        return 0
    hint = "everlog archive --again replaces what the sources still have"
    output.warn(f"{output.plural(len(report.damage), 'problem')} in the archive ({hint})")
    return 1


@command()
@click.argument("patterns", metavar="[PATTERN…]", nargs=-1)
@click.option(
    "--output",
    "-o",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Write to this folder.",
)
@click.option("--at", callback=parse_time, help="Restore the state at this time, or at an age such as 7d.")
@click.option("--version", default="", metavar="SHA256", help="Restore the version with this hash or prefix.")
def restore(patterns: tuple[str, ...], folder: Path, at: str | None, version: str, as_json: bool) -> int:
    """Restore archived files, including deleted ones.

    /home/me/x becomes OUTPUT/home/me/x, with its original time and readable only by you. Existing
    files are not overwritten, and links are not created.
    """
    from everlog.interop.archive.restore import restore as run

    with output.progress("restoring") as on_progress:
        report = run(chosen_home(), folder, patterns, at=at, version=version, progress=on_progress)
    files = output.plural(len(report.files), "file")
    output.print_answer(report, f"{files} ({output.size(report.bytes)}) written below {folder}", as_json)
    return _warn_of_problems(report.problems)


def _warn_of_problems(problems: Sequence[Problem]) -> int:
    """Print the problems on stderr and return the exit code."""
    for problem in problems[:MAX_PROBLEMS]:
        output.warn(f"skipped {problem.path}: {problem.problem}")
    if len(problems) > MAX_PROBLEMS:
        output.warn(f"and {len(problems) - MAX_PROBLEMS:,} more")
    return 1 if problems else 0
