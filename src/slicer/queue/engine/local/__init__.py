"""The engine of this machine: leases of the ledger, and keepers in scopes."""
