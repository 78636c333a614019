"""What the doctor makes of the facts: a file an area. Pure."""
