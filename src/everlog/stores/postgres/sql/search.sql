-- mark_pending: Mark a session as having records to index
INSERT INTO everlog.pending (sid, seq) VALUES (%(sid)s, %(seq)s)
ON CONFLICT (sid) DO UPDATE SET seq = greatest(pending.seq, excluded.seq)

-- stale_sessions: List sessions that have grown since they were indexed, oldest first
SELECT p.sid, coalesce(t.seq, 0), l.bytes, l.metadata
FROM (
    SELECT sid, max(seq) AS seq FROM (
        SELECT sid, seq FROM everlog.pending
        UNION ALL
        SELECT m.sid, l.seq FROM everlog.mark m JOIN everlog.listing l ON l.sid = m.sid
    ) news GROUP BY sid
) p
JOIN everlog.listing l ON l.sid = p.sid
LEFT JOIN everlog.taken t ON t.sid = p.sid
WHERE coalesce(t.seq, -1) < p.seq
ORDER BY l.active, p.sid LIMIT %(limit)s

-- insert_indexed: Start indexing a session
INSERT INTO everlog.taken (sid, seq) VALUES (%(sid)s, 0) ON CONFLICT (sid) DO NOTHING

-- advance_indexed: Record how far a session is indexed; 0 rows mean that another process was faster
UPDATE everlog.taken SET seq = %(through)s WHERE sid = %(sid)s AND seq = %(seq)s

-- keep_session: Block the deletion of a session until the transaction ends
SELECT 1 FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NULL FOR SHARE

-- delete_pending_through: Delete the pending row, unless the session has grown since
DELETE FROM everlog.pending WHERE sid = %(sid)s AND seq <= %(through)s

-- delete_range: Delete the passages of a rewound range
DELETE FROM everlog.passage
WHERE sid = %(sid)s AND seq BETWEEN %(first)s AND %(last)s AND kind <> 'summary'

-- delete_seqs: Delete the passages of some records
DELETE FROM everlog.passage WHERE sid = %(sid)s AND seq = ANY(%(seqs)s)

-- upsert_passage: Write a passage
INSERT INTO everlog.passage (sid, seq, at, kind, text, words, inside)
VALUES (%(sid)s, %(seq)s, %(at)s, %(kind)s, %(text)s, to_tsvector('english', %(words)s),
    CASE WHEN %(inside)s = '' THEN NULL ELSE to_tsvector('simple', %(inside)s) END)
ON CONFLICT (sid, seq) DO UPDATE SET at = excluded.at, kind = excluded.kind, text = excluded.text,
    words = excluded.words, inside = excluded.inside

-- add_passages: Add to the passage count, or subtract from it
UPDATE everlog.stripe SET passages = passages + %(more)s WHERE number = %(stripe)s

-- count_passages: Count all passages
SELECT coalesce(sum(passages), 0)::bigint FROM everlog.stripe

-- delete_passages: Delete all passages of a session
DELETE FROM everlog.passage WHERE sid = %(sid)s

-- delete_indexed: Forget how far a session is indexed
DELETE FROM everlog.taken WHERE sid = %(sid)s

-- delete_pending: Delete the pending row of a session
DELETE FROM everlog.pending WHERE sid = %(sid)s

-- stems: Return the lexeme of each word
SELECT w, to_tsvector('english', w)::text FROM unnest(%(words)s::text[]) AS u (w)

-- count_matches: Count matching passages, up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM everlog.passage WHERE words @@ %(match)s::tsquery LIMIT %(limit)s
) few

-- newest_matches: Find the newest matching passages
SELECT sid, seq FROM everlog.passage WHERE words @@ %(match)s::tsquery
ORDER BY sid DESC, seq DESC LIMIT %(limit)s

-- passage_texts: Read the searchable text of some passages
SELECT p.sid, p.seq, p.kind, p.at, left(p.text, 300000)
FROM unnest(%(sids)s::uuid[], %(seqs)s::bigint[]) AS u (sid, seq)
JOIN everlog.passage p ON p.sid = u.sid AND p.seq = u.seq

-- filter_passages: Find which of some passages match
SELECT p.sid, p.seq
FROM unnest(%(sids)s::uuid[], %(seqs)s::bigint[]) AS u (sid, seq)
JOIN everlog.passage p ON p.sid = u.sid AND p.seq = u.seq
WHERE p.words @@ %(match)s::tsquery

-- best_passages: Rank the newest matching passages, by the score and conditions of a query
SELECT sid, seq, at, ({score})::double precision AS score FROM (
    SELECT p.sid, p.seq, p.at, p.kind, p.words FROM everlog.passage p
    WHERE {conditions} ORDER BY p.sid DESC, p.seq DESC LIMIT %(among)s
) p ORDER BY score, at DESC, sid DESC, seq DESC LIMIT %(limit)s

-- best_per_session: Find the best matching passages of every session
SELECT sid, seq, at, score FROM (
    SELECT sid, seq, at, score, row_number() OVER (PARTITION BY sid ORDER BY score, seq DESC) AS place
    FROM (
        SELECT p.sid, p.seq, p.at, ({score})::double precision AS score
        FROM everlog.passage p WHERE {conditions}
    ) ranked
) placed WHERE place <= %(each)s
