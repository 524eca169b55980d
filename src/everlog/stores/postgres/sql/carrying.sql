-- ids: all sessions in order, some at a time
SELECT sid FROM everlog.session WHERE sid > %(after)s AND deleted_at IS NULL ORDER BY sid LIMIT 1000

-- insert: lines of another store as they are
INSERT INTO everlog.rec (sid, epoch, seq, rid, part, kind, body)
SELECT %(sid)s, %(epoch)s, u.* FROM unnest(
    %(seqs)s::bigint[], %(rids)s::uuid[], %(parts)s::integer[], %(kinds)s::smallint[], %(bodies)b::bytea[]
) AS u (seq, rid, part, kind, body)

-- newest: a newer everlog wrote lines of it
UPDATE everlog.session SET newest = greatest(newest, %(newest)s) WHERE sid = %(sid)s

-- counted: sessions, their records, their bytes
SELECT count(*), coalesce(sum(head), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM everlog.session
WHERE deleted_at IS NULL

-- biggest: the sessions with most bytes
SELECT s.sid, s.bytes, s.head, l.metadata FROM everlog.session s JOIN everlog.listing l ON l.sid = s.sid
WHERE s.deleted_at IS NULL ORDER BY s.bytes DESC, s.sid LIMIT %(limit)s

-- tables: their sizes and those of their indexes; what is stored apart from a row counts to its table
SELECT c.relname, pg_table_size(c.oid)::bigint, pg_indexes_size(c.oid)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p') ORDER BY 2 DESC, 1
