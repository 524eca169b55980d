"""Sessions on PostgreSQL: the same lines as in files, in a database that many machines share.

postgres_store    the methods of the store port
append_statement  one statement per append: compare-and-set on the head, unique record ids
part_layout       the lines of an append, and the parts that they go to
record_reader     lines in pages, parts, integrity checks
metadata_rows     metadata, listing, marks, usage: derived, and never written inside an append
name_claims       keys, aliases and chats, and how they move between sessions
lifecycle         sessions as wholes: created, copied, adopted from another store, removed
leases            turns by the server's clock, with an epoch
passage_search    search by PostgreSQL's full text: trees as tsqueries, texts as words
background        threads that renew leases, report their loss, and refresh rows
connections       transactions and retries; `driver_errors` maps every error of the driver
pool              connections for all threads, which give up on a server that is silent
schema            versions of the tables; all SQL is in `sql/`
"""
