"""The runtime on one store: queue, cron, event feed, agents, takeover, background work."""
