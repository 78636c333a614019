"""What the end of an attempt means."""
