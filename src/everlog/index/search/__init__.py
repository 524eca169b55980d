"""Full-text search: a query becomes a tree, and each store compiles the tree for its index.

query         the text of a query as a tree of phrases, AND, OR and NOT
words         words of a text that have no spaces around them
passages      the searchable texts of a log
fts5          the index of files and of the in-memory store: trees as FTS5 expressions
ranking       the order of sessions; a message as a question for recall
snippets      excerpts with the matches marked
searcher      searches and recall, over the index of any store
search_index  a searcher that catches up with the logs
joined_index  the indexes of several stores as one, with scores that can be compared
"""
