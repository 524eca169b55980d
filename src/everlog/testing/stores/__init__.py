"""What every store must do, as a suite that any test runner can collect.

    class TestMyStore(StoreConformance):
        def open(self, settings):
            return MyStore(settings)

A store passes when all methods whose name begins with `test_` return. Nothing here needs pytest.
Stores that can be closed and opened again override `reopen`, stores whose last bytes can be torn
by a crash override `tear`.
"""

from everlog.testing.stores.append_suite import AppendingConformance
from everlog.testing.stores.naming_suite import NamingConformance
from everlog.testing.stores.read_suite import ReadingConformance
from everlog.testing.stores.usage_suite import SpendingConformance


class StoreConformance(
    AppendingConformance, ReadingConformance, NamingConformance, SpendingConformance
):
    """The contract of the store port, clause by clause."""
