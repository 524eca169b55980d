"""For those who test with holdfast, or write a store or a dialect: suites, a model, a clock."""

from holdfast.testing.clock import FakeClock
from holdfast.testing.dialects import DialectConformance
from holdfast.testing.live import LiveConformance
from holdfast.testing.scripted import ScriptedModel
from holdfast.testing.stores import StoreConformance

__all__ = [
    "DialectConformance",
    "FakeClock",
    "LiveConformance",
    "ScriptedModel",
    "StoreConformance",
]
