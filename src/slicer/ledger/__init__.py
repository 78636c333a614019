"""Who holds GPUs and CPU slots, who waits, and who is next."""
