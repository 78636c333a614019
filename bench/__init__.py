"""``make bench``: slicer beside its peers, in one run, in the namespace machine."""
