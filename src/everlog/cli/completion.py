"""`everlog completion`: what makes Tab complete commands, options, sessions and agents.

The script asks `everlog` itself, by an environment variable, at each press of the key.
"""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import get_completion_class, shell_complete

from everlog.cli import output
from everlog.cli.options import json_option, root_option

VARIABLE = "_EVERLOG_COMPLETE"
INSTALL = {
    "bash": "echo 'eval \"$(everlog completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(everlog completion zsh)\"' >> ~/.zshrc",
    "fish": "everlog completion fish > ~/.config/fish/completions/everlog.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(tuple(INSTALL)))
@json_option
@root_option()
def completion(shell: str, as_json: bool) -> None:
    """Print the script that makes Tab complete commands, options, sessions and agents."""
    from everlog.cli.command_tree import root

    made = get_completion_class(shell)
    assert made is not None
    # Not source(), which for bash would look for a bash to ask for its version.
    script = made.source_template % made(root, {}, "everlog", VARIABLE).source_vars()
    if as_json:
        output.put_json({"shell": shell, "script": script, "install": INSTALL[shell]})
        return
    print(f"# {INSTALL[shell]}\n{script.strip()}")
    if output.on_terminal(sys.stdout):
        sys.stdout.flush()
        output.note(f"to install it: {INSTALL[shell]}")


def answer(instruction: str) -> int:
    """Answer a shell; whatever goes wrong, the line that is being typed stays clean."""
    from everlog.cli.command_tree import root

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)  # warnings too would be written into the line
    try:
        return shell_complete(root, {}, "everlog", VARIABLE, instruction)
    except Exception:
        # Nobody can be told: a shell that completes nothing is all there is to see. The command
        # itself, once it is run, says what is wrong.
        if os.environ.get("EVERLOG_DEBUG"):
            raise
        return 1
    finally:
        os.close(silent)
