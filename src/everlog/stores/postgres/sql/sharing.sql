-- unowned: sessions whose turn nobody has, though something may be left to do; in any order, so that two who look at
-- once begin with different ones
SELECT sid FROM (
    SELECT l.sid FROM everlog.listing l JOIN everlog.session s ON s.sid = l.sid
    WHERE l.unfinished AND s.lease_until < clock_timestamp() AND s.deleted_at IS NULL
    UNION
    SELECT m.sid FROM everlog.mark m
    JOIN everlog.session s ON s.sid = m.sid
    JOIN everlog.listing l ON l.sid = m.sid
    WHERE s.head > l.seq AND s.lease_until < clock_timestamp() AND s.deleted_at IS NULL
) found ORDER BY random() LIMIT %(limit)s

-- heads: how far some logs are
SELECT sid, head FROM everlog.session WHERE sid = ANY(%(sids)s) AND deleted_at IS NULL

-- tell: some sessions have gone on; for those who listen
SELECT pg_notify(u.channel, u.payload) FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS u (channel, payload)

-- clock: the server's, in milliseconds
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- take_due: run a job for a time, unless somebody has done so or will; the same attempt may ask again. What was taken for
-- later than the latest was taken by a clock that is wrong
INSERT INTO everlog.job (name, due, taker) VALUES (%(name)s, %(due)s, %(taker)s)
ON CONFLICT (name) DO UPDATE SET due = excluded.due, taker = excluded.taker
    WHERE job.due < excluded.due OR job.taker = excluded.taker OR job.due > %(latest)s
RETURNING fared

-- jobs: all of them
SELECT name, fared FROM everlog.job

-- know_job: before it is changed for the first time
INSERT INTO everlog.job (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING

-- lock_job: nobody else changes it until the transaction ends
SELECT fared FROM everlog.job WHERE name = %(name)s FOR UPDATE

-- put_job: how it fared
UPDATE everlog.job SET fared = %(fared)b WHERE name = %(name)s
