"""The native store: append-only logs in plain files, locked by flock, synced before they return."""
