"""`index.db`: the one SQLite file, a projection that may be deleted at any time."""
