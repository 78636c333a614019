"""The control socket of a running queue: what others ask it, and what they are told."""
