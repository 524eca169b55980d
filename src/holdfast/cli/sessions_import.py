"""`holdfast sessions migrate`: bring in the files of older programs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.cli import render
from holdfast.cli.options import json_option, open_root, root_option


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
    from holdfast.migration import migrate as run
    from holdfast.stores.layout import legacy_files

    files = legacy_files(directory)
    with open_root() as store, render.progress("importing files") as tell:
        done = run(store.port, files, progress=tell)
    left = [one for one in done if one.problem]
    if as_json:
        render.put_json({"files": done})
    else:
        for one in done:
            if not one.problem:
                name = render.one_line(Path(one.path).name)
                print(f"{name} → {one.id}, {render.plural(one.records_out, 'record')}")
        if not files:
            render.note(f"no old session files in {directory}")
    sys.stdout.flush()
    for one in left:
        render.warn(f"left {render.one_line(one.path)}: {render.one_line(one.problem)}")
    return 1 if left else 0
