"""Who holds GPUs and slots, who waits, and who is next."""
