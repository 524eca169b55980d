"""Compaction: the plan, the request to a model, and a summary made without a model. Pure."""
