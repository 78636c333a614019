"""How a user's slicer talks to the broker."""
