"""Every dialect whose files are used live passes the same suite, on files made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.testing import ForeignStoreConformance
from tests.foreign.foreign_directories import cersei_file, crabtalk_file, picoclaw_files
from tests.formats.round_trips import golden

CLAUDE = "3f1c7f0e-5c1a-4d0b-9a52-0c8f6a3b1d01"
CERSEI = "7d1f0a52-58c1-4e0e-9d67-2b1f6f0e9a01"
PI = "2026-01-05T09-00-00-000Z_0198f3c2-7b6e-7d10-8a55-1f2e3d4c5b6a"


class TestCrabtalk(ForeignStoreConformance):
    format: ClassVar[Any] = crabtalk
    directory: ClassVar[Mapping[str, bytes]] = {
        "crab_user_1.jsonl": crabtalk_file(),
        "crab_user_2_old.jsonl": crabtalk_file(title="Old"),
    }
    session = "crab_user_1"


class TestCrabtalkGolden(ForeignStoreConformance):
    format: ClassVar[Any] = crabtalk
    directory = golden("crabtalk", "crab_tg-12345_2_fix-the-build").files
    session = "crab_tg-12345_2"


class TestCersei(ForeignStoreConformance):
    format: ClassVar[Any] = cersei
    directory: ClassVar[Mapping[str, bytes]] = {"s-1.jsonl": cersei_file("s-1")}
    session = "s-1"
    titles = False
    tombstones = True


class TestPicoclaw(ForeignStoreConformance):
    format: ClassVar[Any] = picoclaw
    directory: ClassVar[Mapping[str, bytes]] = picoclaw_files("agent:main:main")
    session = "agent_main_main"
    titles = False


class TestPicoclawGolden(ForeignStoreConformance):
    format: ClassVar[Any] = picoclaw
    directory = golden("picoclaw", "agent_main_direct_42").files
    session = "agent_main_direct_42"
    titles = False


class TestClaude(ForeignStoreConformance):
    format: ClassVar[Any] = claude
    directory = golden("claude", CLAUDE).files
    session = CLAUDE


class TestPi(ForeignStoreConformance):
    format: ClassVar[Any] = pi
    directory = golden("pi", PI).files
    session = PI
    tombstones = True
