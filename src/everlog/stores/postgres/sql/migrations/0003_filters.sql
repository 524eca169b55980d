-- Filters by agent, sender and source whose cost follows what they return.

-- Longer ones have their hash at the end from now on, which no index is too small for. These are found by a filter
-- again as soon as their session goes on.
UPDATE everlog.listing SET agent = left(agent, 250), sender = left(sender, 250), source = left(source, 250)
WHERE length(agent) > 250 OR length(sender) > 250 OR length(source) > 250;

CREATE INDEX IF NOT EXISTS listing_agent ON everlog.listing (agent, active, sid);
CREATE INDEX IF NOT EXISTS listing_sender ON everlog.listing (sender, agent, active, sid);
CREATE INDEX IF NOT EXISTS listing_source ON everlog.listing (source, active, sid);
