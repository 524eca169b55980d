-- append_one: Append one record to a marked session; 0 rows mean that the cached state of the session is outdated
WITH s AS (
    UPDATE everlog.session
    SET head = head + 1, marker = $4, bytes = bytes + $5, part_bytes = part_bytes + $5
    WHERE sid = $1 AND head = $2 AND bytes = $3 AND marked AND newest <= 1
        AND deleted_at IS NULL AND epoch = coalesce($6, epoch)
    RETURNING sid, head, epoch, part
)
INSERT INTO everlog.rec (sid, seq, rid, epoch, part, kind, body)
SELECT s.sid, s.head, $7, s.epoch, s.part, $8, $9 FROM s

-- append_many: Append records, record the parts they fill, and set the mark: all or nothing
WITH s AS (
    UPDATE everlog.session
    SET head = %(head)s, marker = %(marker)s, bytes = %(bytes)s, part_bytes = %(part_bytes)s,
        part = %(part)s, part_first = %(part_first)s, marked = true
    WHERE sid = %(sid)s AND head = %(before)s AND bytes = %(bytes_before)s AND marked = %(marked)s
        AND newest <= 1 AND deleted_at IS NULL AND epoch = coalesce(%(epoch)s, epoch)
    RETURNING sid, epoch
), m AS (
    INSERT INTO everlog.mark (sid) SELECT s.sid FROM s WHERE NOT %(marked)s ON CONFLICT (sid) DO NOTHING
), p AS (
    INSERT INTO everlog.part (sid, part, bytes, first_seq, last_seq)
    SELECT s.sid, u.* FROM s, unnest(
        %(full)s::integer[], %(full_bytes)s::bigint[], %(full_first)s::bigint[], %(full_last)s::bigint[]
    ) AS u (part, bytes, first_seq, last_seq)
)
INSERT INTO everlog.rec (sid, epoch, seq, rid, part, kind, body)
SELECT s.sid, s.epoch, u.* FROM s, unnest(
    %(seqs)s::bigint[], %(rids)s::uuid[], %(parts)s::integer[], %(kinds)s::smallint[], %(bodies)b::bytea[]
) AS u (seq, rid, part, kind, body)

-- session_state: Read what an append needs to know of a session, and those of its records that are already stored.
-- One snapshot: a record that is missing in it can still arrive, but only behind the head read with it
SELECT s.head, s.marker, s.bytes, s.part, s.part_bytes, s.part_first, s.marked, s.epoch, coalesce(s.owner, ''),
    s.newest, CASE WHEN s.bytes = 0 THEN l.metadata END, r.rid, r.seq, r.body
FROM everlog.session s
LEFT JOIN everlog.listing l ON l.sid = s.sid
LEFT JOIN everlog.rec r ON r.sid = s.sid AND r.rid = ANY(%(rids)s::uuid[])
WHERE s.sid = %(sid)s AND s.deleted_at IS NULL

-- records_by_rid: Find records by their unique rid
SELECT rid, seq, body FROM everlog.rec WHERE sid = %(sid)s AND rid = ANY(%(rids)s)

-- confirm_stored: Commit after an earlier commit, so that both are replicated once this one is acknowledged; 0 rows
-- mean that this server lacks what another one had
UPDATE everlog.session SET head = head WHERE sid = %(sid)s AND deleted_at IS NULL AND (
    SELECT count(*) FROM everlog.rec WHERE sid = %(sid)s AND rid = ANY(%(rids)s::uuid[])
) = %(count)s

-- first_page: Read the head of a session and its first records above a seq
SELECT s.head, s.bytes, r.seq, r.part, r.body
FROM everlog.session s LEFT JOIN LATERAL (
    SELECT seq, part, body FROM everlog.rec
    WHERE sid = s.sid AND seq > %(after)s ORDER BY seq LIMIT %(limit)s
) r ON true
WHERE s.sid = %(sid)s AND s.deleted_at IS NULL ORDER BY r.seq

-- page_above: Read the next records in order; no row means that the session is deleted: its records go after it
SELECT r.seq, r.part, r.body
FROM everlog.session s LEFT JOIN LATERAL (
    SELECT seq, part, body FROM everlog.rec
    WHERE sid = s.sid AND seq > %(after)s AND seq <= %(head)s ORDER BY seq LIMIT %(limit)s
) r ON true
WHERE s.sid = %(sid)s AND s.deleted_at IS NULL ORDER BY r.seq

-- last_page: Read the head of a session and its last records
SELECT s.head, s.bytes, r.seq, r.part, r.body
FROM everlog.session s LEFT JOIN LATERAL (
    SELECT seq, part, body FROM everlog.rec WHERE sid = s.sid ORDER BY seq DESC LIMIT %(limit)s
) r ON true
WHERE s.sid = %(sid)s AND s.deleted_at IS NULL ORDER BY r.seq DESC

-- page_below: Read the preceding records, newest first; no row means that the session is deleted
SELECT r.seq, r.part, r.body
FROM everlog.session s LEFT JOIN LATERAL (
    SELECT seq, part, body FROM everlog.rec
    WHERE sid = s.sid AND seq < %(before)s ORDER BY seq DESC LIMIT %(limit)s
) r ON true
WHERE s.sid = %(sid)s AND s.deleted_at IS NULL ORDER BY r.seq DESC

-- record_offset: Compute where in its part a record begins
SELECT coalesce(sum(octet_length(body) + 1), 0)::bigint FROM everlog.rec
WHERE sid = %(sid)s AND part = %(part)s AND seq < %(seq)s

-- full_parts: List the full parts
SELECT part, bytes, first_seq, last_seq FROM everlog.part WHERE sid = %(sid)s ORDER BY part

-- current_part: Read the part that is being written
SELECT part, part_bytes, part_first, head, bytes FROM everlog.session
WHERE sid = %(sid)s AND deleted_at IS NULL

-- epoch_decreases: Find records whose epoch is lower than that of the record before
SELECT seq, part FROM (
    SELECT seq, part, epoch, lag(epoch) OVER (ORDER BY seq) AS before FROM everlog.rec WHERE sid = %(sid)s
) e WHERE epoch < before ORDER BY seq

-- lock_session: Block appends to a session until the transaction ends
SELECT head, epoch FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NULL FOR UPDATE

-- measured_parts: Compute the parts from the records
SELECT part, sum(octet_length(body) + 1)::bigint, coalesce(min(nullif(seq, 0)), 0), max(seq),
    coalesce(max(CASE WHEN kind BETWEEN 2 AND 4 THEN seq END), 0)
FROM everlog.rec WHERE sid = %(sid)s GROUP BY part ORDER BY part

-- delete_parts: Delete all part rows
DELETE FROM everlog.part WHERE sid = %(sid)s

-- insert_part: Insert a full part
INSERT INTO everlog.part (sid, part, bytes, first_seq, last_seq)
VALUES (%(sid)s, %(part)s, %(bytes)s, %(first)s, %(last)s)

-- update_counts: Correct the counts in a session's row
UPDATE everlog.session SET head = %(head)s, marker = %(marker)s, bytes = %(bytes)s, part = %(part)s,
    part_bytes = %(part_bytes)s, part_first = %(part_first)s
WHERE sid = %(sid)s AND head = %(before)s AND deleted_at IS NULL

-- copy_records: Copy records up to a seq into another session; none if the source is deleted and may be incomplete
INSERT INTO everlog.rec (sid, seq, rid, epoch, part, kind, body)
SELECT %(copy)s, r.seq, r.rid, 0, r.part, r.kind, r.body
FROM everlog.session s JOIN everlog.rec r ON r.sid = s.sid
WHERE s.sid = %(sid)s AND s.deleted_at IS NULL AND r.seq <= %(at)s

-- record_exists: Check that a record exists
SELECT 1 FROM everlog.rec WHERE sid = %(sid)s AND seq = %(at)s

-- birth_record: Read the record that holds the fields a session was created with; an adopted log may have none
SELECT body FROM everlog.rec WHERE sid = %(sid)s AND seq = 0

-- delete_batch: Delete a batch of records of a deleted session; call under `lock_deleted`
DELETE FROM everlog.rec WHERE sid = %(sid)s AND seq <= (
    SELECT max(seq) FROM (SELECT seq FROM everlog.rec WHERE sid = %(sid)s ORDER BY seq LIMIT 5000) few
)
