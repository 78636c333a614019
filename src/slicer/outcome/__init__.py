"""What became of a job, for others to read: history, outcome files, the system journal."""
