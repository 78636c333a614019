"""The queue in texts: for people and for scripts."""
