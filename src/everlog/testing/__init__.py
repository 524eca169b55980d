"""For those who test with everlog, or write a store or a dialect: suites, a model, a clock."""

from everlog.testing.clock import FakeClock
from everlog.testing.dialects import DialectConformance
from everlog.testing.live import LiveConformance
from everlog.testing.scripted import ScriptedModel
from everlog.testing.stores import StoreConformance

__all__ = [
    "DialectConformance",
    "FakeClock",
    "LiveConformance",
    "ScriptedModel",
    "StoreConformance",
]
