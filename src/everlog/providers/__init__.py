"""Models: what completes a context. `app` alone names these."""
