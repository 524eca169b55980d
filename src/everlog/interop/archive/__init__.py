"""An archive of session files that outlives them: raw bytes, by content, compressed.

    {root}/archive/
        objects/ab/cdef….zst      a chunk of a file, named by the SHA-256 of its bytes
        manifests/00000001.jsonl  what a run found, line by line           the truth
        state.db                  the combined content of all manifests    a cache
        lock                      empty; locked while a run writes
        tmp/                      objects being written; not referenced

Objects and manifests are written once and never changed. Objects are durable before the manifest
that refers to them, and a manifest appears whole or not at all, so that the archive is valid
whenever a run is killed. Nothing is ever deleted from it.
"""
