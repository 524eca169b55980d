"""Context windows of models, found without loading the provider, which takes a second."""

from __future__ import annotations

from everlog.context.tokens import choose_window
from everlog.settings import Settings


def window_of(settings: Settings, agent: str, model: str) -> int:
    """Return the window in tokens: the agent's setting, else the one of the model's provider."""
    if model == "offline":
        from everlog.providers.offline_model import WINDOW

        provider_window = WINDOW
    else:
        table = settings.provider.get(model.partition(":")[0])
        provider_window = table.window if table is not None else 0
    return choose_window(model, setting=settings.compaction_of(agent).window, provider=provider_window)
