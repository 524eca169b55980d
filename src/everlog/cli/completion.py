"""`everlog completion`: shell scripts that complete commands, options, sessions and agents.

The script runs `everlog` itself at each press of Tab, with a request in an environment variable.
"""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import get_completion_class, shell_complete

from everlog.cli import output
from everlog.cli.options import command

VARIABLE = "_EVERLOG_COMPLETE"
INSTALL = {
    "bash": "echo 'eval \"$(everlog completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(everlog completion zsh)\"' >> ~/.zshrc",
    "fish": "everlog completion fish > ~/.config/fish/completions/everlog.fish",
}


@command()
@click.argument("shell", type=click.Choice(tuple(INSTALL)))
def completion(shell: str, as_json: bool) -> None:
    """Print a shell completion script.

    It completes commands, options, sessions and agents.
    """
    from everlog.cli.command_tree import root

    kind = get_completion_class(shell)
    assert kind is not None
    # Not source(): for bash it would start a bash to check its version.
    script = kind.source_template % kind(root, {}, "everlog", VARIABLE).source_vars()
    if as_json:
        output.print_json({"shell": shell, "script": script, "install": INSTALL[shell]})
        return
    print(f"# {INSTALL[shell]}\n{script.strip()}")
    if output.is_terminal(sys.stdout):
        output.info(f"to install it: {INSTALL[shell]}")


def run_completion(instruction: str) -> int:
    """Print completions for a shell; an error never disturbs the line that is being typed."""
    from everlog.cli.command_tree import root

    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)  # warnings would be written into the line as well
    try:
        return shell_complete(root, {}, "everlog", VARIABLE, instruction)
    except Exception:
        # There is no place to report it, so nothing is completed. The command itself reports the
        # error when it is run.
        if os.environ.get("EVERLOG_DEBUG"):
            raise
        return 1
    finally:
        os.close(devnull)
