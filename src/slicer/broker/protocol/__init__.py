"""What both ends of the socket know: frames, messages, the interface. Pure."""
