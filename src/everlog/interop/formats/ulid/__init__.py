"""The layout that ours is a superset of: `{id}/session.jsonl` and `metadata.json`, of other programs.

Its sessions are read as our own. Here is what only that program has: its exact layout, to be
written, and the settings beside it.
"""
