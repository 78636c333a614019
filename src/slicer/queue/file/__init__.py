"""The jobs file."""
