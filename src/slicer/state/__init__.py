"""The places of slicer's own files, and how they are read back."""
