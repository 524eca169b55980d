"""The real Claude Code, headless: a home of its own and a model on loopback."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.real.fake_models import FakeModels, Json

# `make test-real` installs the wheel there that carries the program.
PROGRAM = Path(sys.prefix) / "real" / "claude" / "claude_agent_sdk" / "_bundled" / "claude"
MODEL = "claude-sonnet-4-5"
SECONDS = 120
NEEDS_CLAUDE = [
    pytest.mark.real,
    pytest.mark.skipif("EVERLOG_TEST_REAL" not in os.environ, reason="runs a foreign program: make test-real"),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="Claude Code is not installed: make test-real"),
]


class ClaudeCli:
    """One user with one project, and no way to any model but the fake one."""

    def __init__(self, home: Path, models: FakeModels) -> None:
        self.models = models
        self.work = home / "work"
        self.projects = home / ".claude" / "projects"
        self.work.mkdir(parents=True)
        self._environment = {
            "PATH": os.pathsep.join((str(PROGRAM.parent), "/usr/local/bin:/usr/bin:/bin")),
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "TMPDIR": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANTHROPIC_BASE_URL": models.url,
            "ANTHROPIC_API_KEY": "test",
            "NO_PROXY": "127.0.0.1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        }

    def run(self, prompt: str, *flags: str) -> list[Json]:
        """Give it a prompt, and return the requests that it sent until it ended."""
        return self.shell(shlex.join(["claude", *flags]), prompt)

    def shell(self, command: str, prompt: str) -> list[Json]:
        """Give a prompt to what a command line starts."""
        before = len(self.models.requests)
        headless = ["-p", "--model", MODEL, "--output-format", "json", "--", prompt]
        done = subprocess.run(
            ["sh", "-c", f"{command} {shlex.join(headless)}"],
            env=self._environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["is_error"] is False, done.stdout
        return self.models.requests[before:]

    def kill_while_it_waits(self, session_id: str, prompt: str) -> None:
        """Kill it when a prompt is in the transcript and at the model, which does not answer."""
        before = len(self.models.requests)
        said = b'"role":"user","content":' + json.dumps(prompt).encode()
        self.models.is_silent = True
        command = ["claude", "-p", "--model", MODEL, "--resume", session_id, "--", prompt]
        with subprocess.Popen(
            command,
            executable=PROGRAM,
            env=self._environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                deadline = monotonic() + SECONDS
                while len(self.models.requests) == before or said not in self.transcript(session_id).read_bytes():
                    assert process.poll() is None and monotonic() < deadline
                    sleep(0.01)
            finally:
                process.kill()
        self.models.is_silent = False

    def start(self, session_id: str, prompt: str) -> list[Json]:
        """Begin a session."""
        return self.run(prompt, "--session-id", session_id)

    def resume(self, session_id: str, prompt: str) -> list[Json]:
        """Go on with a session."""
        return self.run(prompt, "--resume", session_id)

    def transcript(self, session_id: str) -> Path:
        """Return the file of a session."""
        (path,) = self.projects.glob(f"*/{session_id}.jsonl")
        return path
