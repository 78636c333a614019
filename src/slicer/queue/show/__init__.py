"""The queue as people and scripts see it."""
