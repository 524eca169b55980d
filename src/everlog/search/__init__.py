"""Finding what was said: words, queries, ranking. Pure; the tables are the index's."""
