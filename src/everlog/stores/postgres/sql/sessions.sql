-- insert_session: an empty one; one that was there before under the same id had lower epochs, unless its turn was taken
-- more than once in a millisecond, so that a lease from then is not one of now
INSERT INTO everlog.session (sid, epoch) VALUES (%(sid)s, (extract(epoch FROM now()) * 1000)::bigint)

-- exists: whether there is a session
SELECT 1 FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NULL

-- between: at most two ids of a range
SELECT sid FROM everlog.session
WHERE sid >= %(low)s AND sid <= %(high)s AND deleted_at IS NULL ORDER BY sid LIMIT 2

-- count_session: one more, or one less
UPDATE everlog.stripe SET sessions = sessions + %(more)s WHERE number = %(stripe)s

-- delete_session: it is gone for everybody from here on
UPDATE everlog.session SET deleted_at = now()
WHERE sid = %(sid)s AND epoch = %(epoch)s AND deleted_at IS NULL RETURNING part

-- deleted: sessions whose rows are still to be removed
SELECT sid FROM everlog.session WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 100

-- hold_deleted: nobody removes its rows, and none comes in again under its id, until the transaction ends; no row means
-- that another has removed it, and that what has its id now is a session
SELECT 1 FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NOT NULL FOR UPDATE

-- drop_session: the last of it
DELETE FROM everlog.session WHERE sid = %(sid)s AND deleted_at IS NOT NULL

-- lock_stripes: names change hands one after the other
SELECT number FROM everlog.stripe WHERE number = ANY(%(stripes)s) ORDER BY number FOR UPDATE

-- holder: who has a name
SELECT sid, generation FROM everlog.claim
WHERE name = %(name)s ORDER BY generation DESC, sid DESC LIMIT 1

-- newest_chat: the chat with the highest number
SELECT sid, chat FROM everlog.claim
WHERE name = %(name)s AND chat IS NOT NULL ORDER BY chat DESC, sid DESC LIMIT 1

-- unnumbered: the newest session with a name under which no chat has a number
SELECT sid FROM everlog.claim WHERE name = %(name)s ORDER BY sid DESC LIMIT 1

-- drop_claims: before they are written anew
DELETE FROM everlog.claim WHERE sid = %(sid)s

-- put_claim: a name that a session has
INSERT INTO everlog.claim (name, generation, sid, chat)
VALUES (%(name)s, %(generation)s, %(sid)s, %(chat)s)

-- take_turn: only once the lease is over, by the server's clock, or if the answer was lost; the epoch is the fencing token
UPDATE everlog.session
SET epoch = epoch + 1, owner = %(owner)s, lease_until = now() + %(seconds)s * interval '1 second'
WHERE sid = %(sid)s AND (lease_until < now() OR owner = %(owner)s) AND deleted_at IS NULL
RETURNING epoch

-- renew_turns: those that come back are still ours; one that was given back just now stays free
UPDATE everlog.session s SET lease_until = now() + %(seconds)s * interval '1 second'
FROM unnest(%(sids)s::uuid[], %(epochs)s::bigint[]) AS u (sid, epoch)
WHERE s.sid = u.sid AND s.epoch = u.epoch AND s.lease_until > 'epoch' AND s.deleted_at IS NULL
RETURNING s.sid, s.epoch

-- limit: how long each statement of a transaction may take, in it alone
SELECT set_config('statement_timeout', %(milliseconds)s, true)

-- give_turn_back: unless another has it
UPDATE everlog.session SET lease_until = 'epoch' WHERE sid = %(sid)s AND epoch = %(epoch)s

-- turn: who has it
SELECT epoch, owner, lease_until >= clock_timestamp() FROM everlog.session
WHERE sid = %(sid)s AND deleted_at IS NULL
