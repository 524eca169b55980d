"""Identity links: several ids of one person under one name.

Channel and account stay in the key, so a link joins what one person says within a channel; it
never joins channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from everlog.errors import SettingsError
from everlog.identity.key_text import plain, trim


class Owner(NamedTuple):
    """Whose an id is. Of several the one whose name sorts first is taken."""

    name: str  # as configured
    canonical: str  # what stands in keys
    id: str  # the id by which it was found


class Links:
    """Compiled links; an id under two names is a SettingsError that names both."""

    def __init__(self, links: Mapping[str, Sequence[str]]) -> None:
        self._owners: dict[str, Owner] = {}
        for name in sorted(links):
            canonical = plain(name)
            if not canonical:
                continue
            for given in links[name]:
                known = plain(given)
                if not known:
                    continue
                owner = self._owners.setdefault(known, Owner(name, canonical, known))
                if owner.canonical != canonical:
                    raise SettingsError(
                        f"identity_links: {trim(given)!r} is under {owner.name!r} and {name!r}",
                        hint="an id belongs to one name",
                    )

    def canonical(self, channel: str, sender: str) -> str:
        """The name that a sender goes by; channel and sender in plain form."""
        owners = self.owners(channel, sender) if self._owners else None
        return owners[0].canonical if owners else sender

    def owners(self, channel: str, sender: str) -> list[Owner]:
        """All whose ids fit a sender, the one that counts first.

        A sender is looked for as it is, behind its channel (`telegram:7`), and without what
        stands before its first colon.
        """
        names = [sender]
        if channel:
            names.append(f"{channel}:{sender}")
        before, _, after = sender.partition(":")
        if before and after:
            names.append(after)
        found = [self._owners[name] for name in names if name in self._owners]
        return sorted(set(found)) if len(found) > 1 else found
