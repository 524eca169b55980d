"""An archive of session trees that outlives them: raw bytes, by content, compressed.

    {root}/archive/
        objects/ab/cdef….zst      a piece of a file, named by the SHA-256 of its bytes
        manifests/00000001.jsonl  what a run found, line by line           truth
        state.db                  what all manifests say together          cache
        lock                      empty; flock while a run writes
        tmp/                      objects being written; nothing here is referred to

Objects and manifests are written once and never changed. Objects are on the disk before the
manifest that refers to them, and a manifest appears as a whole or not at all, so the archive is
valid whenever a run is killed. Nothing is ever deleted from it.
"""
