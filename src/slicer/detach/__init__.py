"""Jobs and queues that run without their terminal."""
