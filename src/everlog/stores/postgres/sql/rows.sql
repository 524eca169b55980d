-- insert_listing: Insert the row of a new session
INSERT INTO everlog.listing
    (sid, seq, active, bytes, parts, unfinished, agent, sender, source, title, metadata)
VALUES (%(sid)s, %(seq)s, %(active)s, %(bytes)s, %(parts)s, %(unfinished)s, %(agent)s, %(sender)s, %(source)s,
    %(title)s, %(metadata)b)

-- update_listing: Update a row to a higher seq; a row that is already newer stays as it is
UPDATE everlog.listing
SET seq = %(seq)s, active = %(active)s, bytes = %(bytes)s, parts = %(parts)s, unfinished = %(unfinished)s,
    agent = %(agent)s, sender = %(sender)s, source = %(source)s, title = %(title)s, metadata = %(metadata)b
WHERE sid = %(sid)s AND seq < %(seq)s

-- listing_and_head: Read a session's row, and how far its log is
SELECT s.head, s.bytes, s.part, s.part_bytes, l.metadata, l.seq
FROM everlog.session s JOIN everlog.listing l ON l.sid = s.sid
WHERE s.sid = %(sid)s AND s.deleted_at IS NULL

-- unmark: Remove the mark of an up-to-date row; 0 means that the log has grown. What is not indexed by now becomes
-- pending. Indexing that ends at this moment is not seen; `indexed_pending` finds what it covers
WITH s AS (
    UPDATE everlog.session SET marked = false
    WHERE sid = %(sid)s AND head = %(seq)s AND marked AND deleted_at IS NULL RETURNING sid
), m AS (
    DELETE FROM everlog.mark WHERE sid IN (SELECT sid FROM s)
), p AS (
    INSERT INTO everlog.pending (sid, seq) SELECT s.sid, %(seq)s FROM s
    WHERE NOT EXISTS (SELECT 1 FROM everlog.taken t WHERE t.sid = s.sid AND t.seq >= %(seq)s)
    ON CONFLICT (sid) DO UPDATE SET seq = greatest(pending.seq, excluded.seq)
)
SELECT count(*) FROM s

-- indexed_pending: Find pending sessions that are already indexed
SELECT p.sid FROM everlog.pending p JOIN everlog.taken t ON t.sid = p.sid WHERE t.seq >= p.seq LIMIT 10000

-- delete_indexed_pending: Delete pending rows of indexed sessions, unless they have grown since
DELETE FROM everlog.pending p USING everlog.taken t
WHERE p.sid = ANY(%(sids)s::uuid[]) AND t.sid = p.sid AND t.seq >= p.seq

-- stale_listings: List marked sessions whose row is older than their log, or whose mark is old; last marked first
SELECT m.sid, m.at < clock_timestamp() - interval '60 seconds'
FROM everlog.mark m
JOIN everlog.session s ON s.sid = m.sid
JOIN everlog.listing l ON l.sid = m.sid
WHERE (s.head > l.seq OR m.at < clock_timestamp() - interval '60 seconds') AND m.sid <> ALL(%(tried)s::uuid[])
ORDER BY m.at DESC LIMIT %(limit)s

-- usage_rows: Read the usage rows of a session
SELECT day, model, turns, tool_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost
FROM everlog.spent WHERE sid = %(sid)s

-- delete_usage: Delete the usage rows of a session
DELETE FROM everlog.spent WHERE sid = %(sid)s

-- upsert_usage: Write the usage of a session for one day and model
INSERT INTO everlog.spent (sid, day, model, turns, tool_calls, input_tokens, output_tokens, cache_read_tokens,
    cache_write_tokens, cost)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (day, model, sid) DO UPDATE SET turns = excluded.turns, tool_calls = excluded.tool_calls,
    input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
    cache_read_tokens = excluded.cache_read_tokens, cache_write_tokens = excluded.cache_write_tokens,
    cost = excluded.cost

-- count_sessions: Count all sessions
SELECT coalesce(sum(sessions), 0)::bigint FROM everlog.stripe

-- listing_metadata: Read the metadata in a session's row
SELECT metadata FROM everlog.listing WHERE sid = %(sid)s

-- delete_listing: Delete a session's row
DELETE FROM everlog.listing WHERE sid = %(sid)s

-- delete_mark: Delete a session's mark
DELETE FROM everlog.mark WHERE sid = %(sid)s

-- reset_listing: Make the next fold rebuild a row from the log alone
UPDATE everlog.listing SET seq = -1 WHERE sid = %(sid)s
