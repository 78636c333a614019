"""What the queue knows of its jobs, and keeps."""
