"""Search over several stores as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec.structs import replace

from everlog.errors import NotFoundError, StoreFailedError
from everlog.ports import Progress, Query, Store
from everlog.stores.store_verbs import Searching

if TYPE_CHECKING:
    from everlog.index.search.searcher import Searcher

T = TypeVar("T")


class SearchedStore(NamedTuple):
    """A store that is searched with others."""

    store: Searching
    on_failure: Callable[[Exception], None]  # raises, or leaves the store out
    includes: Callable[[str], bool]  # whether a session counts
    sessions: frozenset[str] | None = None  # no others

    def ask(self, question: Callable[[Searcher], T], default: T) -> T:
        """Return what a function finds in the store's index."""
        try:
            return self.store.query_index(question, default)
        except (StoreFailedError, NotFoundError) as error:
            self.on_failure(error)
            return default

    def narrow(self, query: Query) -> Query:
        """Return the query for this store."""
        return query if self.sessions is None else replace(query, sessions=self.sessions)

    def refresh(self, progress: Progress | None) -> bool:
        """Index new records; return whether the store can be searched."""
        try:
            self.store.refresh_index(progress)
            return True
        except (StoreFailedError, NotFoundError) as error:
            self.on_failure(error)
            return False


def searching(store: Store) -> Searching:
    """Return a store as one with a search index, which all stores of ours have."""
    found = store.capability(Searching)
    assert found is not None
    return found


def make_searcher(stores: Iterable[SearchedStore]) -> Searcher:
    """Return a searcher of all these stores: fallbacks and the order are decided once."""
    from everlog.index.search.joined_index import JoinedIndex  # noqa: PLC0415 - most runs do not search
    from everlog.index.search.searcher import Searcher  # noqa: PLC0415

    sources: Sequence[SearchedStore] = tuple(stores)
    index = JoinedIndex(sources)
    return Searcher(index, index.load_metadata)
