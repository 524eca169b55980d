"""Two machines of our own, each a network namespace, joined to this one and to each other by cables that can be pulled.

Only as root, on Linux; only what was made here is changed, and all of it is taken down in the end. Nothing leaves
the machine, and nothing is forwarded.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import pytest

_NETWORK = 0x40000000  # CLONE_NEWNET


class Machine:
    """One of them."""

    def __init__(self, name: str, network: str) -> None:
        self.name = name
        self.address = f"{network}.2"
        self._cables: list[str] = []  # its ends of them

    def plug(self, cable: str) -> None:
        """A cable ends here."""
        self._cables.append(cable)

    def isolate(self) -> None:
        """Pull all cables: the others are not told, packets just do not arrive any more."""
        for cable in self._cables:
            _ip("-n", self.name, "link", "set", cable, "down")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is started meanwhile runs on this machine."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            _set(there)
            try:
                yield
            finally:
                _set(here)
        finally:
            os.close(here)
            os.close(there)


class Machines:
    """Two machines and this one, each with a cable to each."""

    def __init__(self) -> None:
        number = os.getpid() % 200
        self.one = Machine(f"hf{os.getpid()}a", f"198.18.{number}")
        self.other = Machine(f"hf{os.getpid()}b", f"198.19.{number}")
        # The two see each other under the addresses that this machine sees, by routes over their own cable.
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        return self

    def _make(self) -> None:
        for machine in (self.one, self.other):
            _ip("netns", "add", machine.name)
            self._made.append(machine.name)
            _ip("-n", machine.name, "link", "set", "lo", "up")
            near = machine.name
            _ip("link", "add", near, "type", "veth", "peer", "name", "out", "netns", machine.name)
            _ip("addr", "add", f"{machine.address[:-1]}1/24", "dev", near)
            _ip("link", "set", near, "up")
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "out")
            _ip("-n", machine.name, "link", "set", "out", "up")
            machine.plug("out")
        one, other = self.one, self.other
        _ip("-n", one.name, "link", "add", "beside", "type", "veth", "peer", "name", "beside",
            "netns", other.name)  # fmt: skip
        for machine, far in ((one, other), (other, one)):
            _ip("-n", machine.name, "link", "set", "beside", "up")
            _ip("-n", machine.name, "route", "add", f"{far.address}/32", "dev", "beside",
                "src", machine.address)  # fmt: skip
            machine.plug("beside")

    def __exit__(self, *error: object) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _set(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
