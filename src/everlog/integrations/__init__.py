"""The interfaces of other programs, on their own files: code that used theirs can use these."""
