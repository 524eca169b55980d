"""Checking every byte of the archive: manifests, the objects they name, and all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from everlog.errors import EverlogError, FormatError, LogDamagedError, NotFoundError
from everlog.interop.archive import archive_folder
from everlog.interop.archive.manifest import File, manifest_name
from everlog.interop.archive.objects import object_path
from everlog.interop.archive.source_scan import display_path

MAX_NAMED_FILES = 5  # files that are named for a damaged object


class Damage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file of the archive that is damaged or missing."""

    file: str  # below {root}/archive
    problem: str
    needed_by: list[str] = msgspec.field(default_factory=list)  # the first few of them
    needed_by_count: int = 0


class VerifyReport(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of a check."""

    manifests: int = 0
    objects: int = 0
    bytes: int = 0  # of objects, compressed
    unused: int = 0  # objects of a run that was killed before it could name them
    damage: list[Damage] = msgspec.field(default_factory=list)


def verify(root: Path, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check the archive of a root; NotFoundError if there is none."""
    with archive_folder.open_archive(root) as archive:
        report = VerifyReport()
        needed = _check_manifests(archive, report)
        objects = dict(archive.objects.walk())
        total = sum(objects.values())
        for name, size in objects.items():
            report.objects += 1
            report.bytes += size
            report.unused += name not in needed
            try:
                data = archive.objects.get(name)
                sizes = needed[name].sizes if name in needed else set()
                if sizes - {len(data)}:
                    raise LogDamagedError("its size is not the one in a manifest")
            except EverlogError as error:
                _add_damage(report, name, error.message, needed)
            if progress is not None:
                progress(report.bytes, total)
        for name in sorted(needed.keys() - objects.keys()):
            _add_damage(report, name, "it is missing", needed)
        return report


class _ObjectUsage(msgspec.Struct):
    sizes: set[int] = msgspec.field(default_factory=set)
    paths: dict[bytes, None] = msgspec.field(default_factory=dict)


def _check_manifests(archive: archive_folder.ArchiveFolder, report: VerifyReport) -> dict[str, _ObjectUsage]:
    """Check the manifests and their order, and return the usage of the objects they name."""
    needed: dict[str, _ObjectUsage] = {}
    numbers = archive.manifests.numbers()
    digest = ""
    for number in range(1, max(numbers, default=0) + 1):
        problems: tuple[str, ...]
        try:
            manifest = archive.manifests.read(number)
            problems = manifest.problems
        except NotFoundError:
            problems, manifest = ("it is missing",), None
        except (FormatError, LogDamagedError) as error:
            problems, manifest = (error.message,), None
        if manifest is not None:
            report.manifests += 1
            if digest and not problems and manifest.previous_digest != digest:
                problems = ("the previous manifest is not the one that it was written after",)
            for entry in manifest.entries:
                if isinstance(entry, File):
                    for chunk in entry.chunks:
                        usage = needed.setdefault(chunk.object, _ObjectUsage())
                        usage.sizes.add(chunk.size)
                        usage.paths[entry.raw_path] = None
        digest = manifest.digest if manifest is not None and not problems else ""
        file = f"manifests/{manifest_name(number)}"
        report.damage += [Damage(file=file, problem=problem) for problem in problems]
    return needed


def _add_damage(report: VerifyReport, name: str, problem: str, needed: dict[str, _ObjectUsage]) -> None:
    paths = list(needed[name].paths) if name in needed else []
    report.damage.append(
        Damage(
            file=f"objects/{object_path(name)}",
            problem=problem,
            needed_by=[display_path(path) for path in paths[:MAX_NAMED_FILES]],
            needed_by_count=len(paths),
        )
    )
