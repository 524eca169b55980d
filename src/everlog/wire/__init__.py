"""Every request, response and event type that crosses a process boundary."""
