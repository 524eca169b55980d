"""Formats of other programs: converts their lines to records and back, without I/O."""
