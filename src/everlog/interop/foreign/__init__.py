"""Foreign stores: sessions in the files of other programs, used in place.

    foreign files    the truth: read as they grow, whoever writes; appended to, never rewritten
    a mirror         a native store with the same records, so that everything above works as with
                     any other store: contexts from the end, seqs, leases, the index

A mirror follows its file by byte offset. An append goes to the file first, durably, then to the
mirror; if it is interrupted in between, the mirror catches up from the file the next time. Records
that a format cannot hold and that are no messages (ends of turns, the queue) are kept in the mirror
alone. All derived files are in our home directory, none in the other program's.
"""
