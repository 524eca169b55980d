"""`make bench`: every figure, as ratios in one run; the table for docs/benchmarks.md."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    append,
    compaction,
    daemon,
    extractive,
    formats,
    identity,
    listing,
    page,
    postgres,
    reading,
    search,
    startup,
    tokens,
)
from benchmarks.report import Figure, table
from everlog.cli.output import progress

SECTIONS: dict[str, Callable[[Path], list[Figure]]] = {
    "append": append.measure,
    "reading": reading.measure,
    "listing": listing.measure,
    "startup": startup.measure,
    "compaction": compaction.measure,
    "extractive": extractive.measure,
    "identity": identity.measure,
    "tokens": tokens.measure,
    "daemon": daemon.measure,
    "formats": formats.measure,
    "search": search.measure,
    "page": page.measure,
    "postgres": postgres.measure,
}


def main() -> int:
    """Run the sections that were named, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="default: all")
    parser.add_argument("--dir", help="where to measure (default: a temporary directory)")
    chosen = parser.parse_args()
    figures: list[Figure] = []
    names = list(chosen.sections or SECTIONS)
    with progress("measuring", manual_refresh=True, delay=0) as tell:
        for number, name in enumerate(names):
            tell(number, len(names))
            folder = Path(tempfile.mkdtemp(prefix=f"everlog-bench-{name}-", dir=chosen.dir))
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            try:
                figures += SECTIONS[name](folder)
            finally:
                shutil.rmtree(folder)
    print(table(figures))
    return 1 if any(one.reached is False for one in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
