-- session_ids: List a page of session ids in order
SELECT sid FROM everlog.session WHERE sid > %(after)s AND deleted_at IS NULL ORDER BY sid LIMIT 1000

-- insert_records: Insert the lines of another store unchanged
INSERT INTO everlog.rec (sid, epoch, seq, rid, part, kind, body)
SELECT %(sid)s, %(epoch)s, u.* FROM unnest(
    %(seqs)s::bigint[], %(rids)s::uuid[], %(parts)s::integer[], %(kinds)s::smallint[], %(bodies)b::bytea[]
) AS u (seq, rid, part, kind, body)

-- raise_newest: Record that a newer everlog wrote some of the lines
UPDATE everlog.session SET newest = greatest(newest, %(newest)s) WHERE sid = %(sid)s

-- totals: Count sessions, records and bytes
SELECT count(*), coalesce(sum(head), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM everlog.session
WHERE deleted_at IS NULL

-- largest_sessions: List the sessions with the most bytes
SELECT s.sid, s.bytes, s.head, l.metadata FROM everlog.session s JOIN everlog.listing l ON l.sid = s.sid
WHERE s.deleted_at IS NULL ORDER BY s.bytes DESC, s.sid LIMIT %(limit)s

-- table_sizes: List tables with their size, out-of-line values included, and the size of their indexes
SELECT c.relname, pg_table_size(c.oid)::bigint, pg_indexes_size(c.oid)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p') ORDER BY 2 DESC, 1
