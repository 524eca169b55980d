"""Check every byte of the archive: manifests, the objects they name, and all other objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from everlog.errors import EverlogError, FormatError, LogDamagedError, NotFoundError
from everlog.interop.archive import archive_folder
from everlog.interop.archive.manifest import File, name_of
from everlog.interop.archive.objects import path_of
from everlog.interop.archive.source_scan import shown

NAMED = 5  # files that are told of a damaged object


class Damage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Something that is not as it was written."""

    file: str  # below {root}/archive
    problem: str
    needed_by: list[str] = msgspec.field(default_factory=list)  # the first few of them
    needed_by_count: int = 0


class Checked(msgspec.Struct, kw_only=True, rename="camel"):
    """What was checked, and what is wrong with it."""

    manifests: int = 0
    objects: int = 0
    bytes: int = 0  # of objects, compressed
    unused: int = 0  # objects that a run wrote which was killed before it could name them
    damage: list[Damage] = msgspec.field(default_factory=list)


def verify(root: Path, *, progress: Callable[[int, int], None] | None = None) -> Checked:
    """Check the archive of a root."""
    with archive_folder.opened(root) as opened:
        done = Checked()
        needed = _check_manifests(opened, done)
        objects = dict(opened.objects.walk())
        total = sum(objects.values())
        for name, size in objects.items():
            done.objects += 1
            done.bytes += size
            done.unused += name not in needed
            try:
                data = opened.objects.get(name)
                sizes = needed[name].sizes if name in needed else set()
                if sizes - {len(data)}:
                    raise LogDamagedError("a manifest says that it has another size")
            except EverlogError as error:
                _add(done, name, error.message, needed)
            if progress is not None:
                progress(done.bytes, total)
        for name in sorted(needed.keys() - objects.keys()):
            _add(done, name, "it is missing", needed)
        return done


class _Need(msgspec.Struct):
    sizes: set[int] = msgspec.field(default_factory=set)
    paths: dict[bytes, None] = msgspec.field(default_factory=dict)


def _check_manifests(opened: archive_folder.Folder, done: Checked) -> dict[str, _Need]:
    """Check the manifests and their order; which objects are needed, by what."""
    needed: dict[str, _Need] = {}
    numbers = opened.manifests.numbers()
    digest = ""
    for number in range(1, max(numbers, default=0) + 1):
        problems: tuple[str, ...]
        try:
            manifest = opened.manifests.read(number)
            problems = manifest.problems
        except NotFoundError:
            problems, manifest = ("it is missing",), None
        except (FormatError, LogDamagedError) as error:
            problems, manifest = (error.message,), None
        if manifest is not None:
            done.manifests += 1
            if digest and not problems and manifest.before != digest:
                problems = ("the manifest before it is not the one that it was written after",)
            for entry in manifest.entries:
                if isinstance(entry, File):
                    for piece in entry.pieces:
                        need = needed.setdefault(piece.object, _Need())
                        need.sizes.add(piece.size)
                        need.paths[entry.place] = None
        digest = manifest.digest if manifest is not None and not problems else ""
        file = f"manifests/{name_of(number)}"
        done.damage += [Damage(file=file, problem=problem) for problem in problems]
    return needed


def _add(done: Checked, name: str, problem: str, needed: dict[str, _Need]) -> None:
    paths = list(needed[name].paths) if name in needed else []
    done.damage.append(
        Damage(
            file=f"objects/{path_of(name)}",
            problem=problem,
            needed_by=[shown(path) for path in paths[:NAMED]],
            needed_by_count=len(paths),
        )
    )
