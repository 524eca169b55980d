"""Sessions on PostgreSQL: the same lines as in files, on an engine that many machines share.

store       the verbs of the port
appending   one statement per append: compare-and-set on the head, unique record ids
placing     the lines of an append, and the parts that they go to
reading     lines in pages, parts, what is wrong with them
rows        metadata, listing, marks, usage: derived, and never written inside an append
claims      keys, aliases and chats; `naming` is how they change hands
leases      turns by the server's clock, with an epoch
fulltext    search by the engine's own full text; `words` is how texts become words
keeper      the threads that renew leases, tell of their end, and bring rows up to date
database    transactions and retries; `failures` maps every error of the driver
links       connections for all threads; `silence`: one gives up on a server that says nothing
schema      versions of the tables; all SQL is in `sql/`
"""
