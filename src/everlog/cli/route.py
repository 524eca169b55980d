"""`everlog route`: print how messages would be routed, and why. Nothing is stored."""

from __future__ import annotations

import sys

import click

from everlog.cli import output
from everlog.cli.options import chosen_home, command


@command()
@click.option("--explain", "with_reasons", is_flag=True, help="Explain each decision in words.")
def route(with_reasons: bool, as_json: bool) -> None:
    """Print the agent, scope and key that messages are routed to.

    Reads JSON lines from stdin, each {"context": {"channel": …, "chat_id": …}, …}, and prints one
    JSON line for each. A line can override the configuration with dimensions, identity_links,
    agents and rules. Stops at the first invalid line.
    """
    from msgspec.structs import asdict

    from everlog.app import load_settings
    from everlog.cli.route_input import read_lines
    from everlog.identity.explain import explain
    from everlog.identity.route import Routing

    for router, inbound, key in read_lines(Routing.of(load_settings(chosen_home()))):
        routed = router.route(inbound, key)
        if not with_reasons:
            output.print_json(routed)
        else:
            reasons = explain(router, inbound, key)
            output.print_answer({**asdict(routed), "why": reasons}, " ".join(reasons), as_json)
        sys.stdout.flush()  # a caller that sends line by line gets each answer at once
