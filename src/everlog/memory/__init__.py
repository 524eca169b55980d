"""Facts that outlive sessions: notes, what is extracted into them, and their consolidation."""
