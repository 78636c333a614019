"""The root helper: its sockets, its files, its scopes."""
