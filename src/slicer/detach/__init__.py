"""Jobs and queues that go on without their terminal."""
