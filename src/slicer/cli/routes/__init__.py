"""``slicer routes``: lists and checks routes, counts their jobs, and suggests better thresholds."""
