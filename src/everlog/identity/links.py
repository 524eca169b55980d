"""Identity links: several ids of one person under one name.

Channel and account stay part of the key, so a link joins the messages of one person within a
channel; it never joins channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from everlog.errors import SettingsError
from everlog.identity.key_text import normalize, trim


class Owner(NamedTuple):
    """The person an id belongs to. Of several, the one whose name sorts first is used."""

    name: str  # as configured
    canonical: str  # as used in keys
    id: str  # the id that matched


class Links:
    """Compiled links. Raises `SettingsError` if an id is listed under two names."""

    def __init__(self, links: Mapping[str, Sequence[str]]) -> None:
        self._owners: dict[str, Owner] = {}
        for name in sorted(links):
            canonical = normalize(name)
            if not canonical:
                continue
            for text in links[name]:
                linked_id = normalize(text)
                if not linked_id:
                    continue
                owner = self._owners.setdefault(linked_id, Owner(name, canonical, linked_id))
                if owner.canonical != canonical:
                    raise SettingsError(
                        f"identity_links: {trim(text)!r} is under both {owner.name!r} and {name!r}",
                        hint="list each id under one name only",
                    )

    def canonical(self, channel: str, sender: str) -> str:
        """Return the canonical name of a sender. Channel and sender must be normalized."""
        owners = self.owners(channel, sender) if self._owners else None
        return owners[0].canonical if owners else sender

    def owners(self, channel: str, sender: str) -> list[Owner]:
        """Return all owners with an id that matches a sender; the first is the one used.

        A sender is looked up as it is, prefixed with its channel (`telegram:7`), and without
        the part before its first colon.
        """
        candidates = [sender]
        if channel:
            candidates.append(f"{channel}:{sender}")
        before, _, after = sender.partition(":")
        if before and after:
            candidates.append(after)
        matches = [self._owners[name] for name in candidates if name in self._owners]
        return sorted(set(matches)) if len(matches) > 1 else matches
