"""Shows the queue as text, for people and for scripts."""
