"""Running jobs: their keepers, what forks these, and what became of the attempts."""
