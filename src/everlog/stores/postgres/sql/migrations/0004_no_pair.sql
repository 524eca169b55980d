-- The index of agent and sender together, which those of 0003 replace. A step of its own: nobody reads the table
-- while it waits, so it must not wait for anything else.

DROP INDEX IF EXISTS everlog.listing_pair;
