"""The holders of GPUs and slots, the waiting jobs, and the decision who is next."""
