"""Tells people how their jobs ended: by a command of theirs, by a service on the net, or on the desktop."""
