"""The picker's screen: layout, key bindings and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from prompt_toolkit.application import Application, get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, Filter
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    BufferControl,
    Container,
    DynamicContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    VSplit,
    Window,
    WindowAlign,
)
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.styles import Style

from everlog.cli import output
from everlog.cli.message_lines import Line
from everlog.cli.picker import preview
from everlog.cli.picker.newest_task import NewestTask
from everlog.cli.picker.session_filter import Row, SessionFilter
from everlog.cli.picker.session_table import PreviewPane, SessionTable
from everlog.errors import EverlogError, NotFoundError, UnsupportedError
from everlog.ports import Action
from everlog.ports.capabilities import listed_access
from everlog.session import Store

SIDE_COLUMNS = 100  # minimum width for a preview at the side
PREVIEW_ROWS = 20  # minimum height for a preview below the list by default
MAX_PREVIEWS = 100  # in the cache
THREADS = 3  # listing, searching, preview
ESCAPE_SECONDS = 0.1  # after which Esc is a key, not the start of a sequence

KEYS = "Enter open · ^R rename · ^D delete · Tab preview · Esc leave · F1 help"
EDIT_KEYS: dict[Action, str] = {"rename": " · ^R rename", "delete": " · ^D delete"}
KEYS_BRIEF = "Enter open · Esc leave · F1 help"
HELP = (  # for 40 columns
    "Type to filter by title and content",
    "↑ ↓ PgUp PgDn Home End   move",
    "Enter open · ^R rename · ^D delete",
    "Tab or ^P   toggle the preview",
    "Esc   clear the filter, then leave",
)
STYLE = Style.from_dict(
    {
        "prompt": "bold",
        "titles": "bold",
        "highlighted": "reverse",
        "count": "ansibrightblack",
        "dim": "ansibrightblack",
        "match": "bold ansiyellow",
        "keys": "ansibrightblack",
        "message": "bold",
        "question": "bold ansired",
        "edge": "ansibrightblack",
    }
)

KeyHandler = Callable[[KeyPressEvent], None]
Mode = Literal["list", "rename", "delete"]


class PickerScreen:
    """The full-screen picker; use it once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="picker")
        self._sessions = SessionFilter(store, self._threads, self._redraw, self._on_error)
        self._preview_task = NewestTask(self._threads, self._on_preview_error)
        self._previews: dict[str, list[Line]] = {}
        self._requested_preview = ""
        self._mode: Mode = "list"
        self._subject: Row | None = None  # the session that is renamed or deleted
        self._preview: bool | None = None  # None: if there is room
        self._help = False
        self._message = ""  # shown until the next key
        self._filter = Buffer(multiline=False, on_text_changed=self._on_filter_text)
        self._title = Buffer(multiline=False)
        self._table = SessionTable(self._sessions, self._empty_text)
        self._app: Application[str | None] = self._application()

    async def run(self) -> str | None:
        """Run until the user picks a session or leaves; return its id or None."""
        try:
            await self._sessions.load()
            return await self._app.run_async()
        finally:
            await self._sessions.close()
            await self._preview_task.settle()
            self._threads.shutdown()

    # --- layout

    def _application(self) -> Application[str | None]:
        self._filter_line = _input_line("Filter: ", self._filter)
        self._title_line = _input_line("Title: ", self._title)
        count = Window(FormattedTextControl(self._count), height=1, dont_extend_width=True, align=WindowAlign.RIGHT)
        question = Window(FormattedTextControl(self._question), height=1)
        lines: dict[Mode, Container] = {
            "list": VSplit([self._filter_line, count], padding=1),
            "rename": self._title_line,
            "delete": question,
        }
        bottom = Window(FormattedTextControl(self._bottom), dont_extend_height=True, wrap_lines=True)
        body = HSplit([DynamicContainer(lambda: lines[self._mode]), DynamicContainer(self._body), bottom])
        table = Window(self._table, width=Dimension(weight=3), height=Dimension(weight=1), wrap_lines=False)
        pane = PreviewPane(self._preview_lines)
        edge = Window(width=1, char="│", style="class:edge")
        self._table_only: Container = table
        right = Window(pane, width=Dimension(weight=2))
        self._preview_right: Container = VSplit([table, edge, right])
        rule = Window(height=1, char="─", style="class:edge")
        below = Window(pane, height=Dimension(weight=1))
        self._preview_below: Container = HSplit([table, rule, below])
        app: Application[str | None] = Application(
            layout=Layout(body, focused_element=self._filter_line),
            key_bindings=self._keys(),
            style=STYLE,
            full_screen=True,
        )
        app.timeoutlen = app.ttimeoutlen = ESCAPE_SECONDS
        return app

    def _body(self) -> Container:
        size = get_app().output.get_size()
        is_shown = self._preview
        if is_shown is None:
            is_shown = size.columns >= SIDE_COLUMNS or size.rows >= PREVIEW_ROWS
        if not is_shown:
            return self._table_only
        return self._preview_right if size.columns >= SIDE_COLUMNS else self._preview_below

    def _preview_lines(self) -> tuple[Sequence[Line], Sequence[Line]]:
        row = self._sessions.row
        if row is None:
            return (), ()
        if row.id not in self._previews and self._requested_preview != row.id:
            self._read_preview(row.id)
        lines = self._previews.get(row.id, [("", ""), ("dim", "…")])
        return preview.header_lines(row.session), lines

    def _read_preview(self, session: str) -> None:
        self._requested_preview = session

        def store_preview(lines: list[Line]) -> None:
            while len(self._previews) >= MAX_PREVIEWS:
                del self._previews[next(iter(self._previews))]
            self._previews[session] = lines
            self._redraw()

        self._preview_task.submit(lambda: preview.newest_lines(self._store, session), store_preview)

    def _on_preview_error(self, error: EverlogError) -> None:
        if isinstance(error, NotFoundError):
            self._on_deleted_elsewhere(self._requested_preview)
        else:
            self._on_error(error)

    def _count(self) -> StyleAndTextTuples:
        sessions = self._sessions
        if sessions.index_progress:
            return [("class:count", sessions.index_progress)]
        position = f"{sessions.position + 1:,} of " if sessions.rows else ""
        more = " …" if sessions.is_searching else ""
        return [("class:count", f"{position}{sessions.count:,}{more}")]

    def _empty_text(self) -> str:
        if not self._sessions.text:
            return "no sessions yet (everlog chat starts one)"
        return "searching …" if self._sessions.is_searching else "no session matches"

    def _question(self) -> StyleAndTextTuples:
        if self._subject is None:
            return []
        metadata = self._subject.session.metadata
        title, count = output.one_line(metadata.display_title), metadata.message_count
        label = f"{title}, {output.plural(count, 'message')}"
        return [("class:question", f"Delete permanently? Type y: {label}")]

    def _bottom(self) -> StyleAndTextTuples:
        if self._message:
            return [("class:message", self._message)]
        if self._mode == "rename":
            return [("class:keys", "Enter rename · Esc cancel")]
        if self._mode == "delete":
            return [("class:keys", "y delete · any other key cancel")]
        if self._help:
            return [("class:keys", "\n".join(HELP))]
        wide = get_app().output.get_size().columns >= len(KEYS)
        return [("class:keys", self._keys_of(self._sessions.row) if wide else KEYS_BRIEF)]

    def _keys_of(self, row: Row | None) -> str:
        """Return the keys that do something with a session."""
        keys = KEYS
        for action, text in EDIT_KEYS.items():
            if row is not None and self._refusal(row, action):
                keys = keys.replace(text, "")
        return keys

    def _refusal(self, row: Row, action: Action) -> str:
        """Return why a session is not renamed or deleted here; empty if it is."""
        access = listed_access(self._store.port, row.id)
        if access.mode == "ask":
            return f"a session of {access.program}: open it, and say there to continue here"
        try:
            access.check(action)
        except UnsupportedError as error:
            return error.message
        return ""

    # --- actions

    def _redraw(self) -> None:
        self._app.invalidate()

    def _on_error(self, error: EverlogError) -> None:
        self._message = output.one_line(str(error))
        self._redraw()

    def _on_deleted_elsewhere(self, session: str) -> None:
        """Remove a session that another process deleted while the list was open."""
        self._sessions.remove(session)
        self._message = f"{session} was deleted by another process"

    def _on_filter_text(self, _: Buffer) -> None:
        self._message = ""
        self._sessions.filter(self._filter.text)

    def _set_mode(self, mode: Mode) -> None:
        """Switch to another mode and focus its input line."""
        self._mode = mode
        if mode != "delete":
            self._app.layout.focus(self._title_line if mode == "rename" else self._filter_line)

    async def _pick(self, row: Row) -> None:
        """Exit with a session, if it still exists."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._store.port.metadata, row.id)
        if self._app.future is not None and not self._app.future.done():  # another key may have exited
            self._app.exit(result=row.id)

    async def _rename(self, row: Row, title: str) -> None:
        await self._sessions.rename(row, title)
        self._message = "renamed"

    async def _delete(self, row: Row) -> None:
        await self._sessions.delete(row)
        self._previews.pop(row.id, None)
        self._message = f"deleted {output.one_line(row.session.metadata.display_title)}"

    def _start(self, row: Row, work: Coroutine[Any, Any, None]) -> None:
        """Start an action on a session in the background."""

        async def run() -> None:
            try:
                await work
            except NotFoundError:
                self._on_deleted_elsewhere(row.id)
            except EverlogError as error:
                self._on_error(error)
            self._redraw()

        self._app.create_background_task(run())

    # --- keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        listing = Condition(lambda: self._mode == "list")
        renaming = Condition(lambda: self._mode == "rename")
        deleting = Condition(lambda: self._mode == "delete")
        no_filter = Condition(lambda: not self._filter.text)

        def on(*names: str, when: Filter = listing) -> Callable[[KeyHandler], KeyHandler]:
            def bind(handler: KeyHandler) -> KeyHandler:
                def on_press(event: KeyPressEvent) -> None:
                    self._message = ""
                    handler(event)

                for name in names:
                    keys.add(name, filter=when)(on_press)
                return handler

            return bind

        on("up")(lambda event: self._sessions.move(-1))
        on("down")(lambda event: self._sessions.move(1))
        on("pageup")(lambda event: self._sessions.move(-self._table.height))
        on("pagedown")(lambda event: self._sessions.move(self._table.height))
        on("home")(lambda event: self._sessions.move(-self._sessions.position))
        on("end")(lambda event: self._sessions.go_to_end())

        @on("enter")
        def _open(event: KeyPressEvent) -> None:
            row = self._sessions.row
            if row is not None:
                self._start(row, self._pick(row))

        @on("escape")
        def _back(event: KeyPressEvent) -> None:
            if self._filter.text:
                self._filter.reset()
                self._sessions.filter("")
            else:
                event.app.exit(result=None)

        @on("c-c")
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        @on("tab", "c-p")
        def _toggle_preview(event: KeyPressEvent) -> None:
            self._preview = self._body() is self._table_only

        @on("f1")
        def _toggle_help(event: KeyPressEvent) -> None:
            self._help = not self._help

        on("?", when=listing & no_filter)(_toggle_help)

        @on("c-r", "c-d")
        def _start_edit(event: KeyPressEvent) -> None:
            self._subject = self._sessions.row
            if self._subject is None:
                return
            is_deletion = event.key_sequence[0].key == Keys.ControlD
            if refused := self._refusal(self._subject, "delete" if is_deletion else "rename"):
                self._message = output.one_line(refused)
                return
            if is_deletion:
                self._set_mode("delete")
                return
            self._title.text = output.one_line(self._subject.session.metadata.title or "")
            self._title.cursor_position = len(self._title.text)
            self._set_mode("rename")

        @on("enter", when=renaming)
        def _accept_title(event: KeyPressEvent) -> None:
            title, row = " ".join(self._title.text.split()), self._subject
            self._set_mode("list")
            if title and row is not None and title != row.session.metadata.title:
                self._start(row, self._rename(row, title))
            else:
                self._message = "the title is unchanged"

        @on("escape", "c-c", when=renaming)
        def _cancel_rename(event: KeyPressEvent) -> None:
            self._set_mode("list")
            self._message = "the title is unchanged"

        @on("y", "Y", when=deleting)
        def _delete(event: KeyPressEvent) -> None:
            row = self._subject
            self._set_mode("list")
            if row is not None:
                self._start(row, self._delete(row))

        @on("<any>", "escape", "c-c", "enter", when=deleting)
        def _cancel_delete(event: KeyPressEvent) -> None:
            self._set_mode("list")
            self._message = "nothing was deleted"

        return keys


def _input_line(label: str, buffer: Buffer) -> Window:
    """Return an input line that is scrolled to its start while the cursor stays visible.

    By default the line would stay scrolled after a narrow screen has become wider.
    """
    control = BufferControl(buffer, input_processors=[BeforeInput(label, "class:prompt")])
    return Window(control, height=1, get_horizontal_scroll=lambda _: 0)
