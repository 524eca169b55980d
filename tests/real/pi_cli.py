"""The real pi, headless: installed by npm, with a home of its own and a model on loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.providers.fake_server import FakeServer, chat

PACKAGES = {"0.73.1": "@mariozechner/pi-coding-agent", "0.87.1": "@earendil-works/pi-coding-agent"}
NODE = "node@24"  # newer versions of pi need more than many systems have
_INSTALL_SECONDS = 300
_Json = dict[str, Any]


def install(version: str, folder: Path) -> list[str] | str:
    """Install a version of pi, and return the command that runs it, or why there is none."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    folder.mkdir()
    package = PACKAGES[version]
    command = [npm, "install", "--no-audit", "--no-fund", NODE, f"{package}@{version}"]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"npm: {error}"
    modules = folder / "node_modules"
    node, own = modules / ".bin" / "node", modules / package
    if done.returncode != 0 or not node.exists():
        return f"npm cannot install {package}@{version}: {done.stderr[-200:]}"
    program = json.loads((own / "package.json").read_bytes())["bin"]["pi"]
    return [str(node), str(own / program)]


class PiCli:
    """One user with one project, and no way to any model but the fake one."""

    def __init__(self, command: list[str], home: Path, model: FakeServer) -> None:
        self._command = command
        self._model = model
        self.work = home / "work"
        self.sessions = home / ".pi" / "agent" / "sessions"
        self.work.mkdir(parents=True)
        self.sessions.mkdir(parents=True)
        models = {"baseUrl": f"{model.url}/v1", "api": "openai-completions", "apiKey": "none", "models": [{"id": "m"}]}
        (self.sessions.parent / "models.json").write_text(json.dumps({"providers": {"fake": models}}))
        self._environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "PI_OFFLINE": "1"}

    @property
    def file(self) -> Path:
        """The only session."""
        (path,) = self.sessions.rglob("*.jsonl")
        return path

    def run(self, prompt: str, *flags: str) -> list[str]:
        """Give it a prompt, and return the texts that it sent to the model, without its own prompt."""
        before = len(self._model.sent)
        self._model.answers = [chat(f"Answer {before + 1}.")]
        done = subprocess.run(
            [*self._command, "-p", "--provider", "fake", "--model", "m", *flags, prompt],
            env=self._environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (request,) = self._model.sent[before:]
        return [
            _text(message) for message in request.body["messages"] if message["role"] not in ("system", "developer")
        ]

    def resume(self, prompt: str) -> list[str]:
        """Continue its session with a prompt."""
        return self.run(prompt, "--session", str(self.file))


def _text(message: _Json) -> str:
    """Return what a message says, or what it calls."""
    content = message.get("content") or ""
    words = content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return " ".join([words, *calls]).strip()
