"""Bytes to records and back, torn tails, parts, the fold. Nothing here opens a file."""
