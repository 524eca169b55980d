-- insert_session: Insert an empty session. The epoch starts at the time in ms, so that a lease on an earlier session
-- with the same id is void, unless that session's turn was taken more than once per millisecond
INSERT INTO everlog.session (sid, epoch) VALUES (%(sid)s, (extract(epoch FROM now()) * 1000)::bigint)

-- session_exists: Check that a session exists
SELECT 1 FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NULL

-- ids_between: Find at most two ids in a range
SELECT sid FROM everlog.session
WHERE sid >= %(low)s AND sid <= %(high)s AND deleted_at IS NULL ORDER BY sid LIMIT 2

-- add_sessions: Add to the session count, or subtract from it
UPDATE everlog.stripe SET sessions = sessions + %(more)s WHERE number = %(stripe)s

-- mark_deleted: Delete a session for all readers and writers at once; its rows are removed afterwards
UPDATE everlog.session SET deleted_at = now()
WHERE sid = %(sid)s AND epoch = %(epoch)s AND deleted_at IS NULL RETURNING part

-- deleted_sessions: List deleted sessions whose rows are still to be removed
SELECT sid FROM everlog.session WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 100

-- lock_deleted: Block the removal of a deleted session, and an insert under its id, until the transaction ends; no row
-- means that another process has removed it, and that its id may belong to a new session
SELECT 1 FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NOT NULL FOR UPDATE

-- delete_session: Delete the row of a deleted session
DELETE FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NOT NULL

-- lock_stripes: Serialize changes of who holds a name
SELECT number FROM everlog.stripe WHERE number = ANY(%(stripes)s) ORDER BY number FOR UPDATE

-- name_holder: Find the session that holds a name
SELECT sid, generation FROM everlog.claim
WHERE name = %(name)s ORDER BY generation DESC, sid DESC LIMIT 1

-- ids_named_between: Find the sessions of at most two names in a range; NUL is in those of pairs only
SELECT DISTINCT sid FROM everlog.claim
WHERE name >= %(low)s AND name < %(high)s AND position('\x00'::bytea in name) = 0 ORDER BY sid LIMIT 2

-- newest_chat: Find the chat with the highest number
SELECT sid, chat FROM everlog.claim
WHERE name = %(name)s AND chat IS NOT NULL ORDER BY chat DESC, sid DESC LIMIT 1

-- newest_unnumbered: Find the newest session with a name under which no chat has a number
SELECT sid FROM everlog.claim WHERE name = %(name)s ORDER BY sid DESC LIMIT 1

-- delete_claims: Delete the claims of a session
DELETE FROM everlog.claim WHERE sid = %(sid)s

-- insert_claim: Insert the claim of a session on a name
INSERT INTO everlog.claim (name, generation, sid, chat)
VALUES (%(name)s, %(generation)s, %(sid)s, %(chat)s)

-- acquire_lease: Acquire the turn lease if it has expired by the server clock, or if this attempt's answer was lost;
-- the epoch is the fencing token
UPDATE everlog.session
SET epoch = epoch + 1, owner = %(owner)s, lease_until = now() + %(seconds)s * interval '1 second'
WHERE sid = %(sid)s AND (lease_until < now() OR owner = %(owner)s) AND deleted_at IS NULL
RETURNING epoch

-- renew_leases: Renew leases; the rows returned are still held. A lease that was just released stays free
UPDATE everlog.session s SET lease_until = now() + %(seconds)s * interval '1 second'
FROM unnest(%(sids)s::uuid[], %(epochs)s::bigint[]) AS u (sid, epoch)
WHERE s.sid = u.sid AND s.epoch = u.epoch AND s.lease_until > 'epoch' AND s.deleted_at IS NULL
RETURNING s.sid, s.epoch

-- set_timeout: Limit the time of each statement in this transaction only
SELECT set_config('statement_timeout', %(milliseconds)s, true)

-- release_lease: Release a lease, unless another owner has acquired it
UPDATE everlog.session SET lease_until = 'epoch' WHERE sid = %(sid)s AND epoch = %(epoch)s

-- lease_owner: Read who holds the lease
SELECT epoch, owner, lease_until >= clock_timestamp() FROM everlog.session
WHERE sid = %(sid)s AND deleted_at IS NULL
