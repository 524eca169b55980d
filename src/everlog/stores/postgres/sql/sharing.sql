-- unowned: List sessions that may be unfinished and whose turn nobody holds; in random order, so that two processes
-- that look at once begin with different sessions
SELECT sid FROM (
    SELECT l.sid FROM everlog.listing l JOIN everlog.session s ON s.sid = l.sid
    WHERE l.unfinished AND s.lease_until < clock_timestamp() AND s.deleted_at IS NULL
    UNION
    SELECT m.sid FROM everlog.mark m
    JOIN everlog.session s ON s.sid = m.sid
    JOIN everlog.listing l ON l.sid = m.sid
    WHERE s.head > l.seq AND s.lease_until < clock_timestamp() AND s.deleted_at IS NULL
) found ORDER BY random() LIMIT %(limit)s

-- heads: Read how far some logs are
SELECT sid, head FROM everlog.session WHERE sid = ANY(%(sids)s) AND deleted_at IS NULL

-- notify: Notify listeners that sessions have grown
SELECT pg_notify(u.channel, u.payload) FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS u (channel, payload)

-- server_clock: Read the server's clock, in ms
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- claim_job: Claim the run of a job for a time, unless another process has claimed that or a later one; the same
-- attempt may repeat it. A claim later than the latest plausible time came from a wrong clock and is replaced
INSERT INTO everlog.job (name, due, taker) VALUES (%(name)s, %(due)s, %(taker)s)
ON CONFLICT (name) DO UPDATE SET due = excluded.due, taker = excluded.taker
    WHERE job.due < excluded.due OR job.taker = excluded.taker OR job.due > %(latest)s
RETURNING fared

-- list_jobs: List all jobs
SELECT name, fared FROM everlog.job

-- insert_job: Insert a job before its first change
INSERT INTO everlog.job (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING

-- lock_job: Lock a job until the transaction ends
SELECT fared FROM everlog.job WHERE name = %(name)s FOR UPDATE

-- update_job: Update the state of a job
UPDATE everlog.job SET fared = %(fared)b WHERE name = %(name)s
