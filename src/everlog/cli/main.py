"""The console entry point, and the one place where an error becomes a line and an exit code.

    0    done
    1    failed; one line on stderr says why and what to do
    2    wrong usage, likewise
    130  interrupted; 141 the reader of our output went away

`--version` is answered before anything heavy is imported, and each command imports only what it
needs. With EVERLOG_DEBUG=1 errors are raised with their traceback instead.
"""

from __future__ import annotations

import os
import sys

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; as the process's own, end the process."""
    if arguments is not None:
        return _finish(arguments)
    code = _finish(sys.argv[1:])
    # Everything is closed and flushed. Taking the interpreter down module by module would only
    # add a tenth to the time of a listing.
    os._exit(code)


def _finish(given: list[str]) -> int:
    try:
        code = _version() if given == ["--version"] else _run(given)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
        _silence()
    except OSError as error:
        code = _complain(f"writing the output: {error.strerror or error}")
        _silence()
    return code


def _version() -> int:
    from everlog import __version__

    print(f"everlog {__version__}")
    return 0


def _run(given: list[str]) -> int:
    import gc

    gc.set_threshold(50_000)  # starting up makes many objects and no garbage
    try:
        import click
    except ModuleNotFoundError:
        return _complain("the command line needs click and rich (pip install 'everlog[cli]')")
    try:
        from everlog.cli import command_tree
        from everlog.cli.output import tolerate_any_text

        tolerate_any_text()
        if instruction := os.environ.get("_EVERLOG_COMPLETE"):  # a shell asks
            from everlog.cli.completion import answer

            return answer(instruction)
        with command_tree.root.make_context("everlog", list(given)) as context:
            return command_tree.root.invoke(context) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("EVERLOG_DEBUG"):
            raise
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Say what went wrong, in one line, and give the exit code for it."""
    import click

    from everlog.errors import EverlogError

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    if isinstance(error, click.UsageError):
        hint = f" (try: {error.ctx.command_path} --help)" if error.ctx else ""
        message = " ".join(error.format_message().split())  # some come as a list of lines
        return _complain(message.rstrip(".") + hint, USAGE)
    if isinstance(error, click.Abort) and isinstance(error.__context__, EOFError):
        return _complain("there was no answer; nothing was done")
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _complain("interrupted", INTERRUPTED)
    if isinstance(error, click.ClickException):
        return _complain(error.format_message(), error.exit_code)
    if isinstance(error, EverlogError):
        return _complain(str(error))
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return _complain("what was given is not UTF-8", USAGE)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return _complain(f"{place}{error.strerror or error}")
    return _complain(
        f"internal error: {type(error).__name__}: {error} (EVERLOG_DEBUG=1 shows where)"
    )


def _complain(message: str, code: int = FAILED) -> int:
    from everlog.cli.output import one_line

    try:
        print(f"everlog: {one_line(message)}", file=sys.stderr)
    except OSError:
        pass  # nobody is listening; the exit code still tells
    return code


def _silence() -> None:
    """Point stdout at nothing, so that the interpreter's own flush at exit cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
