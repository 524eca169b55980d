-- await: a session has something to be taken in
INSERT INTO everlog.pending (sid, seq) VALUES (%(sid)s, %(seq)s)
ON CONFLICT (sid) DO UPDATE SET seq = greatest(pending.seq, excluded.seq)

-- behind: sessions that have gone on since they were taken in, the oldest first
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

-- first: a session is taken in for the first time
INSERT INTO everlog.taken (sid, seq) VALUES (%(sid)s, 0) ON CONFLICT (sid) DO NOTHING

-- taken: how far, unless another process was here
UPDATE everlog.taken SET seq = %(through)s WHERE sid = %(sid)s AND seq = %(seq)s

-- hold: a session is not deleted until the transaction ends
SELECT 1 FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NULL FOR SHARE

-- done: nothing is left to be taken in
DELETE FROM everlog.pending WHERE sid = %(sid)s AND seq <= %(through)s

-- drop_range: what a rewind took back
DELETE FROM everlog.passage
WHERE sid = %(sid)s AND seq BETWEEN %(first)s AND %(last)s AND kind <> 'summary'

-- drop_these: what is not found any more
DELETE FROM everlog.passage WHERE sid = %(sid)s AND seq = ANY(%(seqs)s)

-- put: something that was said
INSERT INTO everlog.passage (sid, seq, at, kind, text, words, inside)
VALUES (%(sid)s, %(seq)s, %(at)s, %(kind)s, %(text)s, to_tsvector('english', %(words)s),
    CASE WHEN %(inside)s = '' THEN NULL ELSE to_tsvector('simple', %(inside)s) END)
ON CONFLICT (sid, seq) DO UPDATE SET at = excluded.at, kind = excluded.kind, text = excluded.text,
    words = excluded.words, inside = excluded.inside

-- count: more passages, or fewer
UPDATE everlog.stripe SET passages = passages + %(more)s WHERE number = %(stripe)s

-- total: all passages
SELECT coalesce(sum(passages), 0)::bigint FROM everlog.stripe

-- drop_passages: of a session
DELETE FROM everlog.passage WHERE sid = %(sid)s

-- drop_taken: likewise
DELETE FROM everlog.taken WHERE sid = %(sid)s

-- drop_pending: likewise
DELETE FROM everlog.pending WHERE sid = %(sid)s

-- stems: words as the index has them
SELECT w, to_tsvector('english', w)::text FROM unnest(%(words)s::text[]) AS u (w)

-- number: how many passages have something, as far as it matters
SELECT count(*) FROM (
    SELECT 1 FROM everlog.passage WHERE words @@ %(match)s::tsquery LIMIT %(limit)s
) few

-- places: the newest passages that have something
SELECT sid, seq FROM everlog.passage WHERE words @@ %(match)s::tsquery
ORDER BY sid DESC, seq DESC LIMIT %(limit)s

-- shown: passages to be shown, as far as they are searched
SELECT p.sid, p.seq, p.kind, p.at, left(p.text, 300000)
FROM unnest(%(sids)s::uuid[], %(seqs)s::bigint[]) AS u (sid, seq)
JOIN everlog.passage p ON p.sid = u.sid AND p.seq = u.seq
