"""Documentation is checked: what it shows runs, and what exists is in it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import apsw
import click
import msgspec
import pytest

import everlog
from everlog import errors, model
from everlog.agent.agent import Agent
from everlog.aio import AsyncStore
from everlog.cli import command_tree
from everlog.context.tokens import estimate
from everlog.index.index_file import SCHEMA
from everlog.log import line_codec
from everlog.log.fold import MetadataFold
from everlog.ports import DeltaCallback, Request, ignore_delta
from everlog.runtime.queue_log import TurnOptions, queued_event
from everlog.runtime.runtime import Runtime
from everlog.settings import (
    AgentSettings,
    CompactionSettings,
    CronJob,
    CronPolicy,
    DispatchRule,
    FurtherStoreSettings,
    McpSettings,
    ProviderSettings,
    Settings,
    Strategy,
    TurnSettings,
)
from everlog.stores.file import metadata_file
from everlog.testing import ScriptedModel
from everlog.wire import events

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
CLI, FORMAT, SETTINGS = DOCS / "cli.md", DOCS / "format.md", DOCS / "settings.md"
COMPACTION, ENGINE = DOCS / "compaction.md", DOCS / "engine.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

ONLY_SYNC = {"walk", "entries", "live", "provider", "ephemeral"}  # lazy, or nothing to wait for
NAMED: dict[str, type[msgspec.Struct]] = {"agents": AgentSettings, "provider": ProviderSettings, "mcp": McpSettings}
LISTED = ("stores",)  # a list of tables, at the top
COMMON = "Options of every command"
VARYING = (  # what differs from run to run, and what the comparison puts in its place
    (r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ID"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"/open/[\w-]{43}", "/open/CODE"),
    (r"(uptimeSecs +)\d+", r"\1N"),
    (r"\b\d+(\.\d)? (k|M)?B\b", "SIZE"),
    (r"\b[\d,]+ tokens\b", "N tokens"),
    (r"\b[\d,]+ of N tokens \([^)]+\)", "N of N tokens"),
    (r"\s+", " "),
)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def _blocks(text: str, *languages: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(*one) for one in found if one[0] in languages]


def _sections(page: Path) -> dict[str, str]:
    """The text under each heading of the second level."""
    pieces = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title.strip("`"): text for title, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def _everything() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in [README, *DOCS.glob("*.md")])


def _environment(home: Path) -> dict[str, str]:
    """A child's environment: a home of its own, and `everlog` on the path."""
    bin_folder = home / "bin"
    bin_folder.mkdir()
    command = bin_folder / "everlog"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m everlog "$@"\n')
    command.chmod(0o700)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERLOG_")}
    path = os.pathsep.join((str(bin_folder), kept.get("PATH", os.defpath)))
    source = os.pathsep.join(filter(None, (str(ROOT / "src"), kept.get("PYTHONPATH"))))
    own = {"HOME": str(home), "EVERLOG_HOME": str(home / "root")}
    return {**kept, **own, "PATH": path, "PYTHONPATH": source}


def _run(command: list[str], home: Path, environment: dict[str, str], text: str = "") -> str:
    done = subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=home,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}"
    return done.stdout


# --- the examples run -----------------------------------------------------------------------

PYTHON = [block.text for block in _blocks(README.read_text(encoding="utf-8"), "python")]
COMPACTING = [block.text for block in _blocks(COMPACTION.read_text(encoding="utf-8"), "python")]
RUNNING = [block.text for block in _blocks(ENGINE.read_text(encoding="utf-8"), "python")]
SHELL = [block.text for block in _blocks(README.read_text(encoding="utf-8"), "sh")]


def test_the_readme_has_six_examples() -> None:
    assert len(PYTHON) == 5
    assert len([text for text in SHELL if "everlog " in text]) == 1


@pytest.mark.parametrize("text", [*PYTHON, *COMPACTING, *RUNNING])
def test_a_python_example_runs_and_runs_again(text: str, tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    for _ in range(2):
        _run([sys.executable, "-W", "error", "-c", text], tmp_path, environment)


@pytest.mark.parametrize("text", [text for text in SHELL if "everlog " in text])
def test_a_shell_example_of_the_readme_runs_and_runs_again(text: str, tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    for _ in range(2):
        said = _run(["sh", "-eu"], tmp_path, environment, text)
        assert said.endswith('{"ok":true,"damage":[]}\n')


def test_all_examples_of_the_readme_run_in_one_home(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    for text in PYTHON:
        _run([sys.executable, "-W", "error", "-c", text], tmp_path, environment)


def test_the_readme_names_the_two_commands_and_the_makefile_has_them() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"^make (\w+)", "\n".join(SHELL), re.MULTILINE):
        assert target in targets


def _examples() -> Iterator[tuple[str, str, str]]:
    """Command, its example, and the section it stands in."""
    for title, text in _sections(CLI).items():
        for block in _blocks(text, "sh"):
            yield title, block.text, text


@contextmanager
def _shell(home: Path) -> Iterator[Callable[[str, str], str]]:
    """Runs one example after the other; the daemon, once it is started, goes on to the end."""
    environment = _environment(home)
    with ExitStack() as at_the_end:

        def run(command: str, example: str) -> str:
            if command == "everlog serve":
                return at_the_end.enter_context(_served(home, environment, example))
            return _run(["sh", "-eu"], home, environment, example).replace(str(home / "root"), "/home/user/.everlog")

        yield run


@contextmanager
def _served(home: Path, environment: dict[str, str], example: str) -> Iterator[str]:
    """What the daemon says when it is ready; it is told to stop at the end, and must exit with 0."""
    with subprocess.Popen(
        ["sh", "-euc", re.sub(r"^everlog serve", "exec everlog serve", example, flags=re.M)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=home,
    ) as daemon:
        assert daemon.stdout is not None
        try:
            said = ""
            while "CrabTalk" not in said:  # the last line
                line = daemon.stdout.readline()
                assert line, "the daemon ended"
                said += line
            yield said.replace(str(home / "root"), "/home/user/.everlog")
        finally:
            daemon.terminate()
            _, told = daemon.communicate(timeout=60)
        assert daemon.returncode == 0, told


def test_the_examples_of_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    with _shell(tmp_path) as run:
        for command, example, section in _examples():
            said = run(command, example)
            shown = _blocks(section, "text")
            if shown and command != "everlog doctor":  # which tells versions and the root
                assert _masked(said) == _masked(shown[0].text), command


def test_the_examples_of_the_commands_answer_in_the_json_that_the_page_shows(tmp_path: Path) -> None:
    with _shell(tmp_path) as run:
        for command, example, section in _examples():
            shown = _blocks(section, "json")
            if not shown:
                run(command, example)
                continue
            said = run(command, f"{example.rstrip()} --json\n")
            answer, documented = json.loads(said.splitlines()[-1]), json.loads(shown[0].text)
            for one, other in zip(_objects(answer), _objects(documented), strict=True):
                assert one.keys() == other.keys(), command
            assert list(_unlike(documented, answer, command)) == []


def _objects(answer: Any) -> list[dict[str, Any]]:
    return answer if isinstance(answer, list) else [answer]


def _masked(text: str) -> str:
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text)
    return text.strip()


def _unlike(documented: Any, answer: Any, place: str) -> Iterator[str]:
    """Where an answer lacks what is documented, or has another type there."""
    if isinstance(documented, dict) and isinstance(answer, dict):
        for key, value in documented.items():
            if key in answer:
                yield from _unlike(value, answer[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(documented, list) and isinstance(answer, list):
        if documented and answer:
            yield from _unlike(documented[0], answer[0], f"{place}[0]")
    elif type(documented) is not type(answer):
        yield f"{place}: {type(answer).__name__}"


def test_what_is_made_from_the_code_is_as_make_docs_makes_it() -> None:
    from tests.reference.__main__ import made

    for page, text in made().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run make docs"


# --- what exists is documented --------------------------------------------------------------


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from _commands(inner, f"{path} {name}")


COMMANDS = dict(_commands(command_tree.root, "everlog"))


def _options(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def _documented_options(section: str) -> set[str]:
    """The options in the first column of a section's tables."""
    cells = re.findall(r"^\| (`-[^|]*)\|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(--?[a-z-]+)", cell)}


def test_every_command_has_its_section_and_no_other_is_there() -> None:
    titles = {title for title in _sections(CLI) if title.startswith("everlog")}
    assert titles == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_a_command_is_documented_and_no_other(path: str) -> None:
    sections = _sections(CLI)
    common = _documented_options(sections[COMMON])
    assert common == {"--home", "--store", "--json", "-h", "--help"}
    assert _documented_options(sections[path]) == _options(COMMANDS[path]) - common
    with_json = not isinstance(COMMANDS[path], click.Group)
    everywhere = {"--home", "--store", "--json"}
    assert everywhere - _options(COMMANDS[path]) == (set() if with_json else {"--json"})


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_an_example(path: str) -> None:
    examples = [example for command, example, _ in _examples() if command == path]
    if path == "everlog" or not isinstance(COMMANDS[path], click.Group):
        assert f"{path} " in f"{examples[0]} ".replace("\n", " ")


def test_every_setting_is_documented_with_its_default_and_variable() -> None:
    page = SETTINGS.read_text(encoding="utf-8")
    rows = {
        cells[0].strip("`"): cells
        for row in re.findall(r"^\| (`[a-z]+\..*) \|$", page, re.MULTILINE)
        for cells in [row.split(" | ")]
    }
    settings: dict[str, Any] = {}
    for table, keys in json.loads(msgspec.json.encode(Settings())).items():
        if table in LISTED:
            continue  # its entries have their own table
        if table in NAMED:
            assert keys == {}
            fields = _defaults(NAMED[table])
            settings |= {f"{table}.NAME.{key}": value for key, value in fields.items()}
        else:
            settings |= {f"{table}.{key}": value for key, value in keys.items()}
    assert list(rows) == list(settings)
    for name, value in settings.items():
        _, _, default, meaning, variable = rows[name]
        assert json.loads(default.strip("`")) == value
        by_environment = f"`EVERLOG_{name.replace('.', '_').upper()}`"
        assert variable == ("–" if ".NAME." in name else by_environment)
        assert len(meaning) > 20


@pytest.mark.parametrize("kind", [DispatchRule, CronJob, CronPolicy, FurtherStoreSettings])
def test_every_key_of_an_entry_is_documented_with_its_default(kind: type[msgspec.Struct]) -> None:
    page = SETTINGS.read_text(encoding="utf-8")
    keys = _defaults(kind)
    tables = re.findall(r"^\| key \|.*\n\| --- .*\n((?:\| .*\n)+)", page, re.MULTILINE)
    rows = [[row.strip("| ").split(" | ") for row in table.splitlines()] for table in tables]
    (table,) = (one for one in rows if [cells[0].strip("`") for cells in one] == list(keys))
    for name, _, default, meaning in table:
        value = keys[name.strip("`")]
        told = "–" if value is msgspec.NODEFAULT else f"`{json.dumps(value)}`"
        assert default == told, name
        assert len(meaning) > 10


def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The keys of a table with their defaults, as JSON has them; NODEFAULT: it must be there."""
    found = {}
    for field in msgspec.structs.fields(kind):
        value = field.default
        if value is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            value = field.default_factory()
        if isinstance(value, msgspec.Struct):
            value = {}  # a table that need not be there
        found[field.name] = json.loads(json.dumps(value)) if value != msgspec.NODEFAULT else value
    return found


def test_every_public_name_is_documented() -> None:
    text = _everything()
    missing = [
        name
        for name in everlog.__all__
        if not re.search(rf"\beverlog\.{name}\b|`{name}[`(]|^### {name}$", text, re.MULTILINE)
    ]
    assert missing == []


def test_every_verb_of_the_library_is_in_the_readme() -> None:
    table = _sections(README)["The library in one table"]
    told = set(re.findall(r"`(\w+)`", table))
    for kind in (everlog.Store, everlog.Session):
        assert {name for name in vars(kind) if not name.startswith("_")} - told == set()
    assert set(everlog.Context.__struct_fields__) - told == set()
    for twin, kind in ((everlog.AsyncStore, everlog.Store), (everlog.AsyncSession, everlog.Session)):
        lacks = set(vars(kind)) - set(vars(twin))
        assert {name for name in lacks if not name.startswith("_")} <= ONLY_SYNC


def test_every_event_and_every_method_of_a_hook_is_documented() -> None:
    sections = _sections(ENGINE)
    told = {
        name: set(re.findall(r"`(\w+)`", fields))
        for name, fields in re.findall(r"^\| `(\w+)` \| (.*?) \|", sections["Events"], re.MULTILINE)
    }
    bases = (events.RunEvent, events.StreamNotice)
    kinds = {
        kind.__struct_config__.tag: kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.RunEvent) and kind not in bases
    }
    websocket = (DOCS / "daemon.md").read_text(encoding="utf-8")
    for tag in [tag for tag, kind in kinds.items() if issubclass(kind, events.StreamNotice)]:
        del kinds[tag]
        assert f"`{tag}`" in websocket
    common = set(events.RunEvent.__struct_encode_fields__)
    made = {tag: set(kind.__struct_encode_fields__) - common for tag, kind in kinds.items()}
    assert told == made
    assert all(f"`{kind.__name__}`" in sections["Events"] for kind in kinds.values())
    methods = [name for name in vars(everlog.Hook) if name.startswith("on_")]
    assert re.findall(r"^\| `(\w+)\(", sections["Hooks"], re.MULTILINE) == methods


def test_every_error_is_documented() -> None:
    table = _sections(DOCS / "ARCHITECTURE.md")["Errors"]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    names = [kind.__name__ for kind in kinds if issubclass(kind, errors.EverlogError)]
    assert set(re.findall(r"`everlog\.(\w+)`", table)) == set(names)


def test_the_picture_of_the_layers_is_what_import_linter_enforces() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    enforced = [layer for layer in contract["layers"] if not layer.startswith("(")]
    for page in (DOCS / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"):
        picture = _blocks(page.read_text(encoding="utf-8"), "")[0].text
        drawn = []
        for row in picture.splitlines():
            names = re.split(r" {2,}", row)[0].split(" | ")
            if there := [name for name in names if not name.startswith("(")]:
                drawn.append(" | ".join(there))
        assert drawn == enforced, page


def test_the_picture_of_compaction_is_what_the_fold_makes() -> None:
    section = _sections(DOCS / "ARCHITECTURE.md")["3. Compaction before and after"]
    rows = [re.split(r" {2,}", row) for row in _blocks(section, "")[0].text.splitlines()]
    drawn = [(row[0], row[-2], row[-1]) for row in rows if row[0]]
    with everlog.open_store("memory:") as store:
        session = store.create()
        _say(session, "uctau")
        made = [_state(session, "before")]
        session.append(everlog.Compaction(first_kept_seq=4, summary="summary"))
        made.append(_state(session, "compaction 6"))
        session.append(everlog.assistant("text"))
        made.append(_state(session, "message 7"))
        session.tombstone(5)
        made.append(_state(session, "tombstone 8"))
        session.rewind(4)
        made.append(_state(session, "rewind 9"))
        session.rewind(1)
        made.append(_state(session, "rewind 10"))
    assert drawn == made


def _say(session: everlog.Session, roles: str) -> None:
    """What the letters of the pictures stand for."""
    for number, role in enumerate(roles):
        call = everlog.ToolCall(f"tc_{number}", "bash", {})
        messages = {
            "u": everlog.user("text " * 200),
            "a": everlog.assistant("text " * 200),
            "c": everlog.assistant([everlog.Text("text " * 190), call]),
            "t": everlog.tool_result(f"tc_{number - 1}", "text " * 200),
        }
        session.append(messages[role])


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_the_picture_of_a_strategy_is_what_a_compaction_makes(strategy: Strategy) -> None:
    section = _sections(COMPACTION)["The three strategies"]
    before, picture = (_blocks(piece, "")[0].text for piece in (section, section.partition(f"**`{strategy}`**")[2]))
    drawn = dict(re.split(r" {2,}", row, maxsplit=1) for row in picture.splitlines()[:3])
    with everlog.open_store("memory:") as store:
        session = store.create()
        _say(session, "".join(re.findall(r"\d([a-z])", before)))
        keep = sum(estimate(message) for message in session.messages()[-4:])
        settings = CompactionSettings(strategy=strategy, keep_recent_tokens=keep)
        outcome = asyncio.run(Agent(store, NoModel(), settings=settings).compact(session))
        assert outcome.record is not None
        first = outcome.record.first_kept_seq
        assert f"(firstKeptSeq {first})" in drawn["log"]
        assert _numbers(drawn["summarised"]) == list(range(1, first))
        sent = [message.seq for message in session.context().messages]
        assert drawn["sent"].startswith("[summary]")
        assert _numbers(drawn["sent"]) == sent[1:]


LETTERS = {"queued": "Q", "turn_interrupted": "I", "turn_end": "E"}


def test_the_picture_of_a_crash_is_what_a_start_makes() -> None:
    picture = _blocks(_sections(ENGINE)["The queue"], "")[0].text
    turn, waiting = (picture.index(name) for name in ("turn", "waiting"))
    settings = Settings(turn=TurnSettings(titles=False))
    with everlog.open_store("memory:", settings=settings) as store:
        session = store.create()
        session.append(everlog.user("one", run_id="A"))
        session.append(everlog.assistant([everlog.ToolCall("tc_1", "bash", {})]))
        for name in "BC":
            message = everlog.user(f"!say {name}", id=name, run_id=name)
            session.append(queued_event(message, TurnOptions(), f"event {name}"))
        asyncio.run(_restart(store, session))
        records = session.records()
    tally = MetadataFold.empty(session.id)
    left = list(records)
    for row in picture.splitlines()[1:]:
        drawn = re.findall(r"\d+[a-zA-Z]\b", row)
        if not drawn:  # the crash, and lines between
            continue
        upto = _numbers(row)[-1]
        while left and left[0].seq <= upto:
            tally.add(left.pop(0))
        made = [f"{one.seq}{_letter(one)}" for one in records if one.seq <= upto]
        assert drawn == made[-len(drawn) :], row
        metadata = tally.metadata(1, 0)
        assert row[turn:waiting].strip() == (metadata.run or "")
        assert row[waiting:].split() == list(metadata.waiting)
    assert left == []


def _letter(record: Any) -> str:
    if isinstance(record, everlog.Event):
        return LETTERS[record.kind]
    assert isinstance(record, everlog.Message)
    return "c" if record.tool_calls else record.role[0]


async def _restart(store: everlog.Store, session: everlog.Session) -> None:
    runtime = Runtime(AsyncStore(store))
    watching = runtime.feed.subscribe(session.id)
    assert len(await runtime.start()) == 1
    ends = 0
    async for notice in watching:
        ends += isinstance(notice.event, events.MessageComplete)
        if ends == 2:
            break
    await runtime.wait_for_release(session.id)
    await runtime.drain(1)


def _numbers(row: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", row)]


class NoModel(ScriptedModel):
    """One that fails, so that the built-in summary is taken."""

    async def complete(self, request: Request, told: DeltaCallback = ignore_delta) -> everlog.Message:
        raise everlog.ProviderError("there is none")


def _state(session: everlog.Session, name: str) -> tuple[str, str, str]:
    view = " ".join(str(message.seq) for message in session.messages())
    sent = " ".join(str(message.seq or "summary") for message in session.context().messages)
    return name, view, sent


# --- the format -----------------------------------------------------------------------------

PAGE = FORMAT.read_text(encoding="utf-8")
LINES = [
    line.encode()
    for block in _blocks(PAGE, "jsonl")
    for line in block.text.splitlines()  # the page has no U+2028
]


@pytest.mark.parametrize("line", LINES)
def test_an_example_line_decodes_and_is_what_would_be_written(line: bytes) -> None:
    record, problem, checked = line_codec.decode(line)
    assert record is not None, problem
    assert checked == line_codec.has_crc(line)
    if not checked or record.schema_version != model.SCHEMA_VERSION:
        return
    fresh = record
    if not isinstance(record, model.Unknown):
        fresh = msgspec.structs.replace(record, seq=0, line=b"")
    _, body = line_codec.encode(fresh)
    assert line_codec.build_line(body, record.record_type, record.seq) == line


def test_every_record_type_has_an_example_line() -> None:
    shown = {json.loads(line)["recordType"] for line in LINES}
    assert shown >= {kind.record_type for kind in model.KnownRecord.__args__}


def test_the_example_lines_are_one_log_without_damage(tmp_path: Path) -> None:
    """Together they are the session that the page speaks of, but for the two it says are not."""
    by_seq = {
        json.loads(line)["seq"]: line
        for line in LINES
        if b"forkedFrom" not in line and b'"schemaVersion":2' not in line
    }
    (block,) = _blocks(PAGE, "json")
    folder = tmp_path / "root" / "sessions" / json.loads(block.text)["id"]
    folder.mkdir(parents=True)
    log = b"".join(by_seq[seq] + b"\n" for seq in sorted(by_seq))
    (folder / "session.jsonl").write_bytes(log)
    with everlog.open_store(tmp_path / "root", create=True) as store:
        session = store.session("login")
        assert session.verify() == ()
        view = ", ".join(str(message.seq) for message in session.messages())
        sent = ", ".join(str(message.seq) for message in session.context().messages[1:])
        told = " ".join(PAGE.split())
        assert f"the view is {view} and the context is the summary, {sent}." in told
        assert metadata_file.encode(session.metadata) == block.text.encode()


def test_the_byte_table_is_right() -> None:
    line = LINES[0] + b"\n"
    rows = re.findall(r"^\| (\d+)(?:–(\d+))? \| `(.*?)` \|", PAGE, re.MULTILINE)
    assert len(rows) == 9
    end = 0
    for first, last, content in rows:
        start, end, before = int(first), int(last or first) + 1, end
        assert start == before
        assert line[start:end].decode() == content.replace("\\n", "\n")
    assert end == len(line)


def test_the_crc_is_checked_by_hand_as_shown(tmp_path: Path) -> None:
    (block,) = _blocks(PAGE, "python")
    assert len(block.text.splitlines()) == 3
    check = [sys.executable, "-W", "error", "-c", block.text]
    environment = _environment(tmp_path)
    for data, answer in ((LINES[0], "True"), (LINES[0].replace(b"third", b"other"), "False")):
        (tmp_path / "session.jsonl").write_bytes(data + b"\n")
        assert _run(check, tmp_path, environment).strip() == answer


def test_every_field_and_block_is_in_the_format() -> None:
    known = set(re.findall(r"`([A-Za-z]+)`", PAGE))
    kinds: list[Any] = [*model.KnownRecord.__args__, *model.KnownBlock.__args__]
    kinds += [model.Usage, model.Metadata, model.Metrics, model.Tokens, model.Through, model.UsageRow]
    fields = {field for kind in kinds for field in kind.__struct_encode_fields__}
    fields |= {kind.__struct_config__.tag for kind in model.KnownBlock.__args__}
    ours = {"\x7fline", "extra"}  # the two that are not on the disk
    assert fields - ours - known == set()


def test_every_table_and_column_of_the_index_is_in_the_format() -> None:
    connection = apsw.Connection(":memory:")
    for statement in SCHEMA:
        connection.execute(statement)
    section = _sections(FORMAT)["index.db"]
    documented = {
        table: set(re.findall(r"`(\w+)`", columns))
        for table, columns in re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    }
    tables: list[Any] = connection.execute(
        # FTS5 keeps what it knows in tables of its own, which nobody else reads.
        "SELECT name FROM pragma_table_list WHERE type IN ('table', 'virtual')"
        " AND schema = 'main' AND name NOT LIKE 'sqlite%'"
    ).fetchall()
    found = {name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")} for (name,) in tables}
    connection.close()
    assert documented == found


# --- links ----------------------------------------------------------------------------------


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_decision_is_in_the_index() -> None:
    folder = DOCS / "decisions"
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    listed = re.findall(r"^- \[(\d{4})\]\(([^)]+)\)", (folder / "README.md").read_text(), re.M)
    assert [name for _, name in listed] == files
    for number, name in listed:
        assert name.startswith(f"{number}-")
        assert (folder / name).read_text(encoding="utf-8").startswith(f"# {number}: ")
    numbers = [number for number, _ in listed]
    assert numbers == sorted(set(numbers)), "one number each, in order"
