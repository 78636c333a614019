"""Where slicer's own files lie, and how they are read back."""
