"""A queue that goes on without its terminal."""
