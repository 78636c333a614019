"""The user's slicer's side of the conversation with the broker."""
