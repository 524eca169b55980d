"""Which session a message belongs to: scope, key, aliases and routing. Pure; no I/O."""
