"""Sessions of other programs: their formats, foreign stores, import, export, copy and archive."""
