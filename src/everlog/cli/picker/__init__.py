"""A full-screen list of sessions to pick one from: filter as you type, look inside, rename, delete.

Nothing that is typed waits for the store: pages, searches and previews are read in threads, and
of several requests the newest counts. The first paint reads one page, whatever the number of
sessions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everlog.session import Store


async def pick_async(store: Store) -> str | None:
    """Let the user pick a session; its id, or None if they left without one."""
    from everlog.cli.picker.picker_screen import Screen

    return await Screen(store).run()


def pick(store: Store) -> str | None:
    """The same where no loop runs, on whichever stream is a terminal."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import create_output

    with create_app_session(output=create_output(always_prefer_tty=True)):
        return asyncio.run(pick_async(store))
