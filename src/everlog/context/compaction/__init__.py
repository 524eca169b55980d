"""Compaction: what to summarise, what to ask for, and a summary made without a model. Pure."""
