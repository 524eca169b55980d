"""The OpenAPI document: complete, true, and hammered at."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from everlog import model, ports
from everlog.log import usage_report
from everlog.wire import requests, responses
from tests.daemon.running_daemon import FAST, REPOSITORY, Daemon
from tests.daemon.test_request_guard import routes
from tests.examples import examples

DOCUMENTED = (REPOSITORY / "docs" / "daemon.md").read_text()


def document(daemon: Daemon) -> dict[str, Any]:
    answer = daemon.call("GET", "/docs/openapi.json")
    assert answer.headers["content-type"].startswith("application/json")
    found: dict[str, Any] = answer.json()
    return found


def operations(daemon: Daemon) -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, methods in document(daemon)["paths"].items() for method in methods]


def test_every_api_route_is_in_the_document_with_a_description(daemon: Daemon) -> None:
    known = {(m, p) for m, p in routes() if p.startswith("/api") and m != "OPTIONS"}
    told = set()
    for path, methods in document(daemon)["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert {"400", "401", "404", "429", "503"} <= set(operation["responses"])
            shaped = re.sub(r"\{seq\}", "1", path)
            told.add((method.upper(), re.sub(r"\{[^}]*\}", "abcdef", shaped)))
    assert told == known


def test_every_type_of_the_document_is_in_wire_or_a_type_of_the_store(daemon: Daemon) -> None:
    homes = (requests, responses, model, ports, usage_report)
    for name in document(daemon)["components"]["schemas"]:
        assert any(name in vars(home) for home in homes), name


def test_an_answer_is_of_one_kind(daemon: Daemon) -> None:
    said = document(daemon)["paths"]["/api/sessions/{session_id}/messages"]["post"]["responses"]
    kinds = {
        status: said[status]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for status in ("200", "202")
    }
    assert kinds == {"200": "RunResult", "202": "AcceptedMessage"}


def test_a_question_without_what_it_asks_for_is_told_so(daemon: Daemon) -> None:
    answer = daemon.call("GET", "/api/search")
    assert answer.status_code == 400
    assert "'q'" in " ".join(answer.json()["details"])


def test_the_page_lists_every_operation_and_loads_nothing_from_elsewhere(daemon: Daemon) -> None:
    page = daemon.call("GET", "/docs").text
    for method, path in operations(daemon):
        assert f"<td>{method}</td><td><code>{path}</code></td>" in page
    assert "http" not in page
    assert set(re.findall(r'(?:src|href)="([^"?]+)', page)) >= {"/static/page.js"}
    assert "<script>" not in page and "style=" not in page


def test_every_route_and_status_is_in_the_documentation(daemon: Daemon) -> None:
    for method, path in operations(daemon):
        shown = path.replace("{session_id}", "{id}").replace("{job}", "{id}")
        assert re.search(rf"`{method} {re.escape(shown)}", DOCUMENTED), (method, shown)
    for status in (200, 202, 204, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 502, 503):
        assert f"| {status} |" in DOCUMENTED


def cases(operation: Any) -> Any:
    """Requests that the document allows, and, where it can forbid something, those that it does."""
    allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if not (operation.body or operation.query or operation.path_parameters):
        return allowed
    forbidden = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    return hypothesis.strategies.one_of(allowed, forbidden)


@pytest.mark.slow
def test_nothing_that_the_document_allows_or_forbids_breaks_the_daemon(start: Callable[..., Daemon]) -> None:
    daemon = start(config=FAST)
    with daemon.client() as client:
        made = client.create(title="target").id
        client.send(made, "!say x")
    schema = schemathesis.openapi.from_dict(document(daemon))
    schema.config.update(base_url=daemon.address)
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        @hypothesis.settings(
            max_examples=examples(30),
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=cases(operation), known=hypothesis.strategies.booleans())
        def hammer(case: schemathesis.Case[Any], known: bool) -> None:
            if known and "session_id" in (case.path_parameters or {}):
                case.path_parameters["session_id"] = made
            case.call_and_validate(headers=daemon.bearer, checks=checks)

        hammer()
    with daemon.client() as client:
        assert client.health()["ok"] is True
    assert [line for line in daemon.log() if line.get("status") == 500] == []
