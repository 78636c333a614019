"""``slicer route``: GPU or CPU, decided by what a job's input measures."""
