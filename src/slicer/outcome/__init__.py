"""How jobs ended, for others to read: history, outcome files, the system journal."""
