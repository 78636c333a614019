"""The control socket of a running queue: other processes' questions, its answers, and its events."""
