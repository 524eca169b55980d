"""`everlog route`: where messages go, and why. Nothing is stored."""

from __future__ import annotations

import sys

import click

from everlog.cli import output
from everlog.cli.options import chosen_root, json_option, root_option


@click.command()
@click.option("--explain", "explained", is_flag=True, help="Say in words why.")
@json_option
@root_option()
def route(explained: bool, as_json: bool) -> None:
    """Tell which agent, scope and key messages have.

    Reads JSON lines from stdin, each {"context": {"channel": …, "chat_id": …}, …}, and answers
    each with one JSON line. What a line gives itself (dimensions, identity_links, agents, rules)
    takes the place of the configuration's. Ends at the first line that cannot be used.
    """
    from msgspec.structs import asdict

    from everlog.app import load_settings
    from everlog.cli import route_input
    from everlog.identity.explain import explain
    from everlog.identity.route import Routing

    for router, inbound, key in route_input.stdin(Routing.of(load_settings(chosen_root()))):
        routed = router.route(inbound, key)
        if not explained:
            output.put_json(routed)
        elif as_json:
            output.put_json({**asdict(routed), "why": explain(router, inbound, key)})
        else:
            print(output.one_line(" ".join(explain(router, inbound, key))))
        sys.stdout.flush()  # whoever asks line by line has the answer at once
