"""One agent: a turn with its model calls, tools, hooks and compaction."""
