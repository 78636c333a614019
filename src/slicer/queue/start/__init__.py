"""Chooses the next jobs, gets their leases, and starts their scopes and commands."""
