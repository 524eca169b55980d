-- Sessions, their records, and what is derived from them.
--
-- Plain SQL that PostgreSQL 13+, Citus (distribute by sid), CockroachDB and YugabyteDB take: no triggers, no
-- sequences, no extensions. The schema is named here as it is by default; the setting postgres.schema replaces it.

-- What an append changes, and nothing else: one row per session, updated in place (room is left in every page, and no
-- index is on a column that changes).
CREATE TABLE everlog.session (
    sid uuid PRIMARY KEY,                               -- the ULID's 128 bits: the order is that of the text
    head bigint NOT NULL DEFAULT 0,                     -- the last seq; 0: nothing was written, not even seq 0
    marker bigint NOT NULL DEFAULT 0,                   -- the last seq of a rewind, tombstone or compaction
    epoch bigint NOT NULL DEFAULT 0,                    -- the fencing token: raised with every turn
    bytes bigint NOT NULL DEFAULT 0,                    -- of all lines with their newlines
    part_bytes bigint NOT NULL DEFAULT 0,               -- of those in the current part
    part_first bigint NOT NULL DEFAULT 0,               -- the first seq in it; 0: none yet
    lease_until timestamptz NOT NULL DEFAULT 'epoch',   -- by the server's clock
    deleted_at timestamptz,                             -- gone for everybody; rows are being removed
    part integer NOT NULL DEFAULT 1,                    -- the current part
    newest smallint NOT NULL DEFAULT 1,                 -- the highest schema version; above ours: read-only
    marked boolean NOT NULL DEFAULT false,              -- whether it has a row in mark
    owner text                                          -- who took the turn last
) WITH (fillfactor = 60);
CREATE INDEX session_deleted ON everlog.session (deleted_at) WHERE deleted_at IS NOT NULL;

-- The log: each body is the exact line, crc included, without its newline.
CREATE TABLE everlog.rec (
    sid uuid NOT NULL,
    seq bigint NOT NULL,
    rid uuid NOT NULL,                                  -- from the record's id: a retry cannot be stored twice
    epoch bigint NOT NULL,                              -- of the session when it was stored: never goes back
    part integer NOT NULL,
    kind smallint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (sid, seq),
    UNIQUE (sid, rid)
);

-- Parts that are full; the current one is in session.
CREATE TABLE everlog.part (
    sid uuid NOT NULL,
    part integer NOT NULL,
    bytes bigint NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    PRIMARY KEY (sid, part)
);

-- Names: keys, aliases, and pairs of agent and sender. Who has the highest (generation, sid) holds the name. Written
-- in the transaction that stores the record which claims it.
CREATE TABLE everlog.claim (
    name bytea NOT NULL,                                -- bytes: a pair has a NUL in it
    generation bigint NOT NULL,
    sid uuid NOT NULL,
    chat bigint,                                        -- the number, under the name that chats are numbered under
    PRIMARY KEY (name, generation, sid)
);
CREATE INDEX claim_sid ON everlog.claim (sid);
CREATE INDEX claim_chat ON everlog.claim (name, chat, sid) WHERE chat IS NOT NULL;

-- Rows that are locked while a name changes hands, and sums that nobody has to count.
CREATE TABLE everlog.stripe (
    number integer PRIMARY KEY,
    sessions bigint NOT NULL DEFAULT 0,
    passages bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO everlog.stripe (number) SELECT generate_series(0, 255);

-- The metadata of each session up to a record. Derived, except for a session without records: then it is all there is.
CREATE TABLE everlog.listing (
    sid uuid PRIMARY KEY,
    seq bigint NOT NULL,                                -- what it covers
    active bigint NOT NULL,                             -- ms of the last message
    bytes bigint NOT NULL,
    parts integer NOT NULL,
    unfinished boolean NOT NULL,
    agent text NOT NULL,
    sender text NOT NULL,
    source text NOT NULL,
    title text NOT NULL,                                -- for filters: case-folded
    metadata bytea NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX listing_active ON everlog.listing (active, sid);
CREATE INDEX listing_pair ON everlog.listing (agent, sender, active, sid);
CREATE INDEX listing_unfinished ON everlog.listing (active, sid) WHERE unfinished;

-- Sessions whose listing may be behind their log: put by an append, taken away when the row is up to date.
CREATE TABLE everlog.mark (
    sid uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What was spent, by day and model; written with the session's listing.
CREATE TABLE everlog.spent (
    day text NOT NULL,
    model text NOT NULL,
    sid uuid NOT NULL,
    turns bigint NOT NULL,
    tool_calls bigint NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cache_read_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    cost double precision NOT NULL,
    PRIMARY KEY (day, model, sid)
);
CREATE INDEX spent_sid ON everlog.spent (sid);

-- What was said, for search. Off the append path: pending names the sessions that have gone on since taken.
CREATE TABLE everlog.pending (
    sid uuid PRIMARY KEY,
    seq bigint NOT NULL
);
CREATE TABLE everlog.taken (
    sid uuid PRIMARY KEY,
    seq bigint NOT NULL,
    passages bigint NOT NULL DEFAULT 0
);
CREATE TABLE everlog.passage (
    sid uuid NOT NULL,
    seq bigint NOT NULL,                                -- 0: the title
    at bigint NOT NULL,                                 -- ms
    kind text NOT NULL,
    text text NOT NULL,
    words tsvector NOT NULL,
    inside tsvector,                                    -- three letters each of names in code
    PRIMARY KEY (sid, seq)
);
CREATE INDEX passage_words ON everlog.passage USING gin (words);
CREATE INDEX passage_inside ON everlog.passage USING gin (inside);
