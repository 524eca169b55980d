"""Test tools: conformance suites for stores and formats, a scripted model, a fake clock."""

from everlog.testing.clock import FakeClock
from everlog.testing.foreign_store_suite import ForeignStoreConformance
from everlog.testing.format_suite import FormatConformance
from everlog.testing.scripted_model import ScriptedModel
from everlog.testing.stores import StoreConformance

__all__ = ["FakeClock", "ForeignStoreConformance", "FormatConformance", "ScriptedModel", "StoreConformance"]
