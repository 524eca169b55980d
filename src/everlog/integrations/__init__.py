"""The interfaces of other programs, on their own files, as drop-in replacements."""
