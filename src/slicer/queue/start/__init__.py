"""Which jobs are started next, and the leases for them."""
