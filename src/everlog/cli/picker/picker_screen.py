"""The picker's screen: its parts, its keys, and what they do."""

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
from everlog.cli.picker.newest_task import Newest
from everlog.cli.picker.session_filter import Finding, Row
from everlog.cli.picker.session_table import Pane, Table
from everlog.errors import EverlogError, NotFoundError
from everlog.session import Store

BESIDE = 100  # columns from which on the preview is at the side
ROOMY = 20  # rows from which on it is shown below without being asked for
PREVIEWS = 100  # that are kept
THREADS = 3  # listing, searching, preview
ESCAPE_SECONDS = 0.1  # after which Esc is itself, and not the beginning of a sequence

KEYS = "Enter open · ^R rename · ^D delete · Tab preview · Esc leave · F1 help"
KEYS_BRIEF = "Enter open · Esc leave · F1 help"
HELP = (  # for 40 columns
    "Type to filter titles and what was said",
    "↑ ↓ PgUp PgDn Home End   move",
    "Enter open · ^R rename · ^D delete",
    "Tab or ^P   the preview, on and off",
    "Esc   clear the filter, then leave",
)
STYLE = Style.from_dict(
    {
        "prompt": "bold",
        "titles": "bold",
        "chosen": "reverse",
        "count": "ansibrightblack",
        "dim": "ansibrightblack",
        "found": "bold ansiyellow",
        "keys": "ansibrightblack",
        "told": "bold",
        "question": "bold ansired",
        "user": "bold ansigreen",
        "assistant": "bold ansicyan",
        "tool": "ansimagenta",
        "open": "ansiyellow",
        "failed": "ansired",
        "summary": "ansiblue",
        "edge": "ansibrightblack",
    }
)

Act = Callable[[KeyPressEvent], None]
Mode = Literal["list", "rename", "delete"]


class Screen:
    """One use of the picker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="picker")
        self._finding = Finding(store, self._threads, self._changed, self._fail)
        self._reading = Newest(self._threads, self._fail)
        self._previews: dict[str, list[Line]] = {}
        self._asked_preview = ""
        self._mode: Mode = "list"
        self._subject: Row | None = None  # what is renamed or deleted
        self._preview: bool | None = None  # None: if there is room
        self._help = False
        self._told = ""  # for people, until the next key
        self._filter = Buffer(multiline=False, on_text_changed=self._typed)
        self._title = Buffer(multiline=False)
        self._table = Table(self._finding, self._nothing)
        self._app: Application[str | None] = self._application()

    async def run(self) -> str | None:
        """Show it until the user picks a session or leaves."""
        try:
            await self._finding.begin()
            return await self._app.run_async()
        finally:
            await self._finding.close()
            await self._reading.settle()
            self._threads.shutdown()

    # --- what is seen

    def _application(self) -> Application[str | None]:
        self._filter_line = Window(
            BufferControl(self._filter, input_processors=[BeforeInput("Filter: ", "class:prompt")]),
            height=1,
            get_horizontal_scroll=_from_its_start,
        )
        self._title_line = Window(
            BufferControl(self._title, input_processors=[BeforeInput("Title: ", "class:prompt")]),
            height=1,
            get_horizontal_scroll=_from_its_start,
        )
        count = Window(
            FormattedTextControl(self._count),
            height=1,
            dont_extend_width=True,
            align=WindowAlign.RIGHT,
        )
        asking = Window(FormattedTextControl(self._question), height=1)
        lines: dict[Mode, Container] = {
            "list": VSplit([self._filter_line, count], padding=1),
            "rename": self._title_line,
            "delete": asking,
        }
        bottom = Window(
            FormattedTextControl(self._bottom), dont_extend_height=True, wrap_lines=True
        )
        body = HSplit(
            [DynamicContainer(lambda: lines[self._mode]), DynamicContainer(self._body), bottom]
        )
        table = Window(
            self._table, width=Dimension(weight=3), height=Dimension(weight=1), wrap_lines=False
        )
        pane = Pane(self._preview_lines)
        edge = Window(width=1, char="│", style="class:edge")
        self._alone: Container = table
        self._beside: Container = VSplit([table, edge, Window(pane, width=Dimension(weight=2))])
        rule = Window(height=1, char="─", style="class:edge")
        self._below: Container = HSplit([table, rule, Window(pane, height=Dimension(weight=1))])
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
        wanted = self._preview
        if wanted is None:
            wanted = size.columns >= BESIDE or size.rows >= ROOMY
        if not wanted:
            return self._alone
        return self._beside if size.columns >= BESIDE else self._below

    def _preview_lines(self) -> tuple[Sequence[Line], Sequence[Line]]:
        row = self._finding.row
        if row is None:
            return (), ()
        if row.id not in self._previews and self._asked_preview != row.id:
            self._read_preview(row.id)
        return preview.head(row.listed), self._previews.get(row.id, [("", ""), ("dim", "…")])

    def _read_preview(self, session: str) -> None:
        self._asked_preview = session

        def read() -> list[Line] | None:
            try:
                return preview.newest(self._store, session)
            except NotFoundError:
                return None  # somebody else deleted it

        def keep(lines: list[Line] | None) -> None:
            if lines is None:
                self._drop(session)
                return
            while len(self._previews) >= PREVIEWS:
                del self._previews[next(iter(self._previews))]
            self._previews[session] = lines
            self._changed()

        self._reading.ask(read, keep)

    def _count(self) -> StyleAndTextTuples:
        finding = self._finding
        if finding.taking_in:
            return [("class:count", finding.taking_in)]
        place = f"{finding.place + 1:,} of " if finding.rows else ""
        more = " …" if finding.searching else ""
        return [("class:count", f"{place}{finding.count:,}{more}")]

    def _nothing(self) -> str:
        if not self._finding.text:
            return "no sessions yet (everlog chat begins one)"
        return "searching …" if self._finding.searching else "no session matches"

    def _question(self) -> StyleAndTextTuples:
        if self._subject is None:
            return []
        metadata = self._subject.listed.metadata
        what = (
            f"{output.one_line(metadata.title)}, {output.plural(metadata.message_count, 'message')}"
        )
        return [("class:question", f"Delete for good? Type y: {what}")]

    def _bottom(self) -> StyleAndTextTuples:
        if self._told:
            return [("class:told", self._told)]
        if self._mode == "rename":
            return [("class:keys", "Enter renames · Esc leaves it as it is")]
        if self._mode == "delete":
            return [("class:keys", "y deletes · any other key does not")]
        if self._help:
            return [("class:keys", "\n".join(HELP))]
        wide = get_app().output.get_size().columns >= len(KEYS)
        return [("class:keys", KEYS if wide else KEYS_BRIEF)]

    # --- what happens

    def _changed(self) -> None:
        self._app.invalidate()

    def _fail(self, error: EverlogError) -> None:
        self._told = output.one_line(str(error))
        self._changed()

    def _drop(self, session: str) -> None:
        """A session was deleted by somebody else while the list was open."""
        self._finding.forget(session)
        self._told = f"{session} is no more: it was deleted elsewhere"

    def _typed(self, _: Buffer) -> None:
        self._told = ""
        self._finding.filter(self._filter.text)

    def _turn(self, mode: Mode) -> None:
        """Go to another mode; what is typed goes to its line."""
        self._mode = mode
        if mode != "delete":
            self._app.layout.focus(self._title_line if mode == "rename" else self._filter_line)

    async def _pick(self, row: Row) -> None:
        """Leave with a session, if it is still there."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._store.port.metadata, row.id)
        if self._app.future is not None and not self._app.future.done():  # a second key was faster
            self._app.exit(result=row.id)

    async def _rename(self, row: Row, title: str) -> None:
        await self._finding.rename(row, title)
        self._told = "renamed"

    async def _delete(self, row: Row) -> None:
        await self._finding.delete(row)
        self._previews.pop(row.id, None)
        self._told = f"deleted {output.one_line(row.listed.metadata.title)}"

    async def _guarded(self, row: Row, doing: Coroutine[Any, Any, None]) -> None:
        try:
            await doing
        except NotFoundError:
            self._drop(row.id)
        except EverlogError as error:
            self._fail(error)
        self._changed()

    # --- keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        listing = Condition(lambda: self._mode == "list")
        renaming = Condition(lambda: self._mode == "rename")
        deleting = Condition(lambda: self._mode == "delete")
        no_filter = Condition(lambda: not self._filter.text)

        def on(*names: str, when: Filter = listing) -> Callable[[Act], Act]:
            def bind(act: Act) -> Act:
                def pressed(event: KeyPressEvent) -> None:
                    self._told = ""
                    act(event)

                for name in names:
                    keys.add(name, filter=when)(pressed)
                return act

            return bind

        on("up")(lambda event: self._finding.move(-1))
        on("down")(lambda event: self._finding.move(1))
        on("pageup")(lambda event: self._finding.move(-self._table.height))
        on("pagedown")(lambda event: self._finding.move(self._table.height))
        on("home")(lambda event: self._finding.move(-self._finding.place))
        on("end")(lambda event: self._finding.go_to_end())

        @on("enter")
        def _open(event: KeyPressEvent) -> None:
            row = self._finding.row
            if row is not None:
                event.app.create_background_task(self._guarded(row, self._pick(row)))

        @on("escape")
        def _back(event: KeyPressEvent) -> None:
            if self._filter.text:
                self._filter.reset()
                self._finding.filter("")
            else:
                event.app.exit(result=None)

        @on("c-c")
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        @on("tab", "c-p")
        def _toggle(event: KeyPressEvent) -> None:
            self._preview = self._body() is self._alone

        @on("f1")
        def _explain(event: KeyPressEvent) -> None:
            self._help = not self._help

        on("?", when=listing & no_filter)(_explain)

        @on("c-r", "c-d")
        def _begin(event: KeyPressEvent) -> None:
            self._subject = self._finding.row
            if self._subject is None:
                return
            if event.key_sequence[0].key == Keys.ControlD:
                self._turn("delete")
                return
            self._title.text = output.one_line(self._subject.listed.metadata.name or "")
            self._title.cursor_position = len(self._title.text)
            self._turn("rename")

        @on("enter", when=renaming)
        def _keep(event: KeyPressEvent) -> None:
            title, row = " ".join(self._title.text.split()), self._subject
            self._turn("list")
            if title and row is not None and title != row.listed.metadata.name:
                event.app.create_background_task(self._guarded(row, self._rename(row, title)))
            else:
                self._told = "the title stays as it is"

        @on("escape", "c-c", when=renaming)
        def _keep_not(event: KeyPressEvent) -> None:
            self._turn("list")
            self._told = "the title stays as it is"

        @on("y", "Y", when=deleting)
        def _delete(event: KeyPressEvent) -> None:
            row = self._subject
            self._turn("list")
            if row is not None:
                event.app.create_background_task(self._guarded(row, self._delete(row)))

        @on("<any>", "escape", "c-c", "enter", when=deleting)
        def _spare(event: KeyPressEvent) -> None:
            self._turn("list")
            self._told = "nothing was deleted"

        return keys


def _from_its_start(_: Window) -> int:
    """Where a line is shown from, as long as its cursor is seen; else it stays where it was, also
    when a narrow screen has become a wide one."""
    return 0
