"""The decision who gets what. Pure."""
