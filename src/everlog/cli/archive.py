"""`everlog archive`: keep the raw files of sessions, whatever becomes of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import chosen_root, json_option, moment, root_option

if TYPE_CHECKING:
    from everlog.interop.archive.archive_listing import Listed
    from everlog.interop.archive.source_scan import Problem

TOLD = 20  # problems that are told one by one


class Defaulting(click.Group):
    """A group in which what is no command is a source for `add`, as is nothing at all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `add` in its place."""
        first = 0
        while first < len(args) and args[first].startswith(("--root", "--dialect")):
            first += 1 if "=" in args[first] else 2
        known = {*self.commands, "-h", "--help"}
        if ctx.resilient_parsing and first >= len(args):
            return super().parse_args(ctx, args)  # a shell asks what may come next
        if first >= len(args) or args[first] not in known:
            args = [*args[:first], "add", *args[first:]]
        return super().parse_args(ctx, args)


@click.group(cls=Defaulting)
@root_option()
def archive() -> None:
    """Keep a copy of the session files of other programs, which outlives them.

    `everlog archive [SOURCE…]` is short for `everlog archive add [SOURCE…]`. A folder that is
    named like a command is given as ./NAME.
    """


@archive.command()
@click.argument("sources", metavar="[SOURCE…]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--again", is_flag=True, help="Read unchanged files too; replace damaged objects.")
@json_option
@root_option()
def add(sources: tuple[Path, ...], again: bool, as_json: bool) -> int:
    """Copy what is new or changed in files and folders.

    Without a SOURCE: the folders of Claude Code, Codex, pi, CrabTalk and PicoClaw that exist.
    Every byte is kept; links are noted and not followed. A file that has gone stays in the
    archive, and one that was rewritten keeps what it was.
    """
    from everlog.interop.archive.backup import copy
    from everlog.interop.archive.program_directories import usual_places

    chosen = list(sources) or usual_places(Path.home(), os.environ)
    with output.progress("archiving") as tell:
        done = copy(chosen_root(), chosen, usual=not sources, again=again, progress=tell)
    if as_json:
        output.put_json(done)
    elif not done.sources:
        output.note("no folder of a known program was found (everlog archive DIR takes any)")
    else:
        told = (
            f"{done.new:,} new and {done.changed:,} changed of {output.plural(done.files, 'file')}"
        )
        told += f", {done.gone:,} gone" if done.gone else ""
        read, written = output.size(done.bytes_read), output.size(done.bytes_written)
        print(f"{told}: {read} read, {written} written")
        if done.links:
            output.note(f"{output.plural(done.links, 'link')} noted and not followed")
        if done.special:
            output.note(f"{output.plural(done.special, 'special file')} skipped")
    return _tell(done.problems)


@archive.command("list")
@click.argument("patterns", metavar="[PATTERN…]", nargs=-1)
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many."
)
@json_option
@root_option()
def list_(patterns: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Show the sources; with a PATTERN, the files that match and their versions.

    A PATTERN is a path, or the end of one or of a folder above it, with *, ? and [ ]: `*.jsonl`,
    `memory`, `~/.claude/projects/-work`.
    """
    from everlog.interop.archive.archive_listing import listing

    found = listing(chosen_root(), patterns, limit=limit)
    if as_json:
        output.put_json(found)
    elif not found.sources:
        output.note("nothing is archived yet (everlog archive does it)")
    elif not patterns:
        _put_sources(found)
    else:
        rows = [
            (
                version["sha256"][:12],
                output.when(version["at"]),
                output.size(version["size"]),
                f"gone {file.gone[:10]}" if file.gone else "",
                file.path,
            )
            for file in found.files
            for version in file.versions
        ]
        rows += [
            (
                "link",
                "",
                "",
                f"gone {one.gone[:10]}" if one.gone else "",
                f"{one.path} → {one.target}",
            )
            for one in found.files
            if one.target is not None
        ]
        titles = ("VERSION", "ARCHIVED", "SIZE", "STATE", "PATH")
        output.put_table(titles, rows, right=("SIZE",))
        if found.matching > len(found.files):
            more = found.matching - len(found.files)
            output.note(f"{more:,} more match (--limit {found.matching})")


def _put_sources(found: Listed) -> None:
    rows = [
        (
            one.path,
            f"{one.files:,}",
            f"{one.gone:,}",
            f"{one.versions:,}",
            output.size(one.bytes),
            output.when(one.since),
        )
        for one in found.sources
    ]
    titles = ("SOURCE", "FILES", "GONE", "VERSIONS", "SIZE", "SINCE")
    output.put_table(titles, rows, right=titles[1:5])


@archive.command()
@json_option
@root_option()
def verify(as_json: bool) -> int:
    """Check every byte of the archive; names what is damaged, and exits 1."""
    from everlog.interop.archive.verify import verify as check

    with output.progress("verifying") as tell:
        done = check(chosen_root(), progress=tell)
    if as_json:
        output.put_json({"ok": not done.damage, **_plain(done)})
    for one in () if as_json else done.damage:
        by = f" (needed by {one.needed_by[0]}" if one.needed_by else ""
        by += f" and {one.needed_by_count - 1:,} more" if one.needed_by_count > 1 else ""
        print(output.one_line(f"{one.file}: {one.problem}{by}{')' if by else ''}"))
    if not done.damage:
        if not as_json:
            objects = output.plural(done.objects, "object")
            manifests = output.plural(done.manifests, "manifest")
            print(f"{objects} ({output.size(done.bytes)}) and {manifests} verified, no damage")
        return 0
    sys.stdout.flush()
    output.warn(
        f"{output.plural(len(done.damage), 'problem')} in the archive"
        " (everlog archive --again writes anew what its sources still have)"
    )
    return 1


def _plain(value: object) -> dict[str, object]:
    import msgspec

    made = msgspec.to_builtins(value)
    assert isinstance(made, dict)
    return made


@archive.command()
@click.argument("patterns", metavar="[PATTERN…]", nargs=-1)
@click.option(
    "--output",
    "-o",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to.",
)
@click.option("--at", callback=moment, help="As archived at that time, or so long ago (7d).")
@click.option("--version", default="", metavar="SHA256", help="The version that begins so.")
@json_option
@root_option()
def restore(
    patterns: tuple[str, ...], folder: Path, at: str | None, version: str, as_json: bool
) -> int:
    """Write files back as they were, also those that have gone.

    /home/me/x becomes OUTPUT/home/me/x, with its time and its mode for you alone. Nothing is
    written over, and links are not made.
    """
    from everlog.interop.archive.restore import restore as run

    with output.progress("restoring") as tell:
        done = run(chosen_root(), folder, patterns, at=at, version=version, progress=tell)
    if as_json:
        output.put_json(done)
    else:
        files = output.plural(len(done.files), "file")
        print(f"{files} ({output.size(done.bytes)}) written below {output.one_line(str(folder))}")
    return _tell(done.problems)


def _tell(problems: Sequence[Problem]) -> int:
    """Name what was left, on stderr; the exit code."""
    sys.stdout.flush()
    for one in problems[:TOLD]:
        output.warn(f"left {output.one_line(one.path)}: {output.one_line(one.problem)}")
    if len(problems) > TOLD:
        output.warn(f"and {len(problems) - TOLD:,} more")
    return 1 if problems else 0
