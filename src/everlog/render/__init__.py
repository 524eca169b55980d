"""Rendering of sessions as Markdown and HTML, and of values for people to read. Pure."""
