"""The console entry point, and the only place that turns an error into a message and an exit code.

    0    success
    1    failure; one line on stderr gives the reason and a hint
    2    wrong usage; one line on stderr as well
    130  interrupted; 141 the reader of our output closed the pipe

`--version` is handled before any slow import, and each command imports only what it needs. With
EVERLOG_DEBUG=1 errors are raised with their traceback instead.
"""

from __future__ import annotations

import os
import sys

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
EXTRAS = {  # what each extra installs, as far as a command may miss it
    "agent": ("anthropic", "mcp", "openai", "pydantic_ai"),
    "archive": ("zstandard",),
    "cli": ("cronsim", "markdown_it", "prompt_toolkit", "pygments", "rich"),
    "daemon": ("google", "httpx2", "jinja2", "litestar", "uvicorn", "uvloop", "websockets"),
    "postgres": ("psycopg",),
    "tokens": ("splintr",),
    "watch": ("watchfiles",),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; without `arguments`, exit the process."""
    if arguments is not None:
        return _run_and_flush(arguments)
    code = _run_and_flush(sys.argv[1:])
    # Everything is closed and flushed. A regular interpreter shutdown would make a listing 10 %
    # slower.
    os._exit(code)


def _run_and_flush(arguments: list[str]) -> int:
    try:
        code = _version() if arguments == ["--version"] else _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
        _discard_stdout()
    except OSError as error:
        code = _print_error(f"cannot write the output: {error.strerror or error}")
        _discard_stdout()
    return code


def _version() -> int:
    from everlog import __version__

    print(f"everlog {__version__}")
    return 0


def _run(arguments: list[str]) -> int:
    import gc

    gc.set_threshold(50_000)  # startup allocates many objects and no garbage
    try:
        import click
    except ModuleNotFoundError:
        return _print_error("the command line needs click (pip install 'everlog[cli]')")
    try:
        from everlog.cli import command_tree
        from everlog.cli.output import escape_unencodable_text

        escape_unencodable_text()
        if instruction := os.environ.get("_EVERLOG_COMPLETE"):  # called by the shell's completion
            from everlog.cli.completion import run_completion

            return run_completion(instruction)
        with command_tree.root.make_context("everlog", list(arguments)) as context:
            return command_tree.root.invoke(context) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("EVERLOG_DEBUG"):
            raise
        return _report_error(error)


def _report_error(error: BaseException) -> int:
    """Print an error as one line on stderr and return its exit code."""
    import click

    from everlog.errors import EverlogError

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    if isinstance(error, click.UsageError):
        hint = f" (try: {error.ctx.command_path} --help)" if error.ctx else ""
        message = " ".join(error.format_message().split())  # some messages have several lines
        return _print_error(message.rstrip(".") + hint, USAGE)
    if isinstance(error, click.Abort) and isinstance(error.__context__, EOFError):
        return _print_error("no answer was given; nothing was done")
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _print_error("interrupted", INTERRUPTED)
    if isinstance(error, click.ClickException):
        return _print_error(error.format_message(), error.exit_code)
    if isinstance(error, EverlogError):
        return _print_error(str(error))
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_of(error.name or "")):
        return _print_error(f"this needs {error.name} (pip install 'everlog[{extra}]')")
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return _print_error("the arguments are not valid UTF-8", USAGE)
    if isinstance(error, OSError):
        location = f"{error.filename}: " if error.filename else ""
        return _print_error(f"{location}{error.strerror or error}")
    return _print_error(f"internal error: {type(error).__name__}: {error} (set EVERLOG_DEBUG=1 for a traceback)")


def _extra_of(module: str) -> str:
    """Return the extra that installs a third-party module; empty if none does."""
    package = module.partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), "")


def _print_error(message: str, code: int = FAILED) -> int:
    from everlog.cli.output import one_line

    try:
        print(f"everlog: {one_line(message)}", file=sys.stderr)
    except OSError:
        pass  # stderr is closed; the exit code still reports the failure
    return code


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's flush at exit cannot fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
