"""The decision who gets which resources. Pure."""
