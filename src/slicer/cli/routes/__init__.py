"""``slicer routes``: which there are, whether they fit the machine, what they did, better thresholds."""
