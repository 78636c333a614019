"""Running jobs: their keepers, the starters that fork these, and the ends of the attempts."""
