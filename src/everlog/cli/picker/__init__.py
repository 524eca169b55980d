"""A full-screen session picker: filter as you type, preview, rename, delete.

Input never waits for the store: pages, searches and previews are read in threads, and only the
newest request counts. The first paint reads one page, however many sessions there are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everlog.session import Store


async def pick_async(store: Store) -> str | None:
    """Let the user pick a session; return its id, or None if they left without one."""
    from everlog.cli.picker.picker_screen import PickerScreen

    return await PickerScreen(store).run()


def pick(store: Store) -> str | None:
    """Run `pick_async` without a running event loop, on whichever stream is a terminal."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import create_output

    with create_app_session(output=create_output(always_prefer_tty=True)):
        return asyncio.run(pick_async(store))
