-- What the daemons on one database share beside sessions: their scheduled jobs.

CREATE TABLE everlog.job (
    name text PRIMARY KEY,
    due bigint NOT NULL DEFAULT 0,                      -- ms: the last time it was run for; who raises it runs the job
    taker uuid,                                         -- the attempt that raised it: the same one may ask again
    fared bytea NOT NULL DEFAULT ''                     -- how its runs ended, whether it is paused
);
