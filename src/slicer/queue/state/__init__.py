"""The state of the queue's jobs, and its journal and log directory."""
