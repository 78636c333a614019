"""The accounts of all users' jobs as a file: its tables, and reading it. The broker alone writes."""

DIRECTORY = "/var/lib/slicer"
FILE = "usage.db"
