"""Where sessions are kept: in memory, in files, in PostgreSQL, and what those stores share."""
