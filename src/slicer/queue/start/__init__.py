"""Which jobs are started next, their leases, and the start of their scopes and commands."""
