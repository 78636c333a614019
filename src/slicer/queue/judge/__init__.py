"""Decides what the end of an attempt means."""
