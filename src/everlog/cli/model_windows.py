"""How many tokens a model takes, found without loading what talks to it, which takes a second."""

from __future__ import annotations

from everlog.context.tokens import choose_window
from everlog.settings import Settings


def window_of(settings: Settings, agent: str, model: str) -> int:
    """The window of an agent with a model: as set for the agent, else for the model's provider."""
    if model == "offline":
        from everlog.providers.offline_model import WINDOW

        stated = WINDOW
    else:
        table = settings.provider.get(model.partition(":")[0])
        stated = table.window if table is not None else 0
    return choose_window(model, setting=settings.compaction_of(agent).window, provider=stated)
