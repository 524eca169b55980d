"""Sessions in the files of other programs, used where they lie.

    their files      the truth: read as they grow, whoever writes; added to, never rewritten
    a mirror         a store of ours that holds the same records, so that everything above works
                     as with any other store: contexts from the end, seqs, leases, the index

A mirror follows its file by byte offset. What we append goes to the file first, durably, then to
the mirror; if that was cut short, the file is followed the next time. What a format has no place
for and nobody said (ends of turns, the queue) is kept in the mirror alone. All derived files lie
in a directory of ours, none in theirs.
"""
