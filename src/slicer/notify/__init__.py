"""Notifies people how their jobs ended: by their own command, by a network service, or on the desktop."""
