"""The two ends' common knowledge: frames, messages, the interface. Pure."""
