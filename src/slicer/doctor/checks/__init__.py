"""What the doctor concludes from the facts: one file an area. Pure."""
