"""Sessions as documents to read: Markdown and HTML. Pure."""
