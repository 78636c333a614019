"""slicer: run commands in systemd scopes, with GPU and CPU leases held across the scope."""

__version__ = "0.1.0.dev0"
