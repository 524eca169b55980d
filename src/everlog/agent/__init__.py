"""The agent: turns with their model calls, tools, hooks and compaction."""
