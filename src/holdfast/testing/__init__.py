"""For those who test with holdfast or write a store for it: conformance suite, model, clock."""

from holdfast.testing.clock import FakeClock
from holdfast.testing.conformance import StoreConformance
from holdfast.testing.scripted import ScriptedModel

__all__ = ["FakeClock", "ScriptedModel", "StoreConformance"]
