"""The orchestration: turns and compaction runs."""
