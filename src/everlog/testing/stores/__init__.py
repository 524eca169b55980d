"""The conformance suite for stores, which any test runner can collect.

    class TestMyStore(StoreConformance):
        def open(self, settings):
            return MyStore(settings)

A store passes if all methods whose name begins with `test_` return. pytest is not required.
Override `reopen` if the store can be closed and opened again, and `tear` if a crash can leave a
half-written record.
"""

from everlog.testing.stores.append_suite import AppendConformance
from everlog.testing.stores.naming_suite import NamingConformance
from everlog.testing.stores.read_suite import ReadConformance
from everlog.testing.stores.usage_suite import UsageConformance


class StoreConformance(AppendConformance, ReadConformance, NamingConformance, UsageConformance):
    """The contract of the store port, clause by clause."""
