"""The version of slicer. This is its only place."""

__version__ = "0.1.0"
