"""``slicer route``: GPU or CPU, decided by measuring a job's input."""
