"""The context of the next model call: building, fitting, counting, compaction. Pure."""
