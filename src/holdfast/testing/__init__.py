"""For those who test with holdfast or write a store for it: the conformance suite, a clock."""

from holdfast.testing.clock import FakeClock
from holdfast.testing.conformance import StoreConformance

__all__ = ["FakeClock", "StoreConformance"]
