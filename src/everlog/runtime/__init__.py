"""A running system over one store: queue, cron, event feed, agents, takeover, background work."""
