"""The formats of other programs: how their lines become records, and back. No input or output."""
