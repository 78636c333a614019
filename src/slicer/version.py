"""The version of slicer. slicer_client and the Debian package say the same."""

__version__ = "0.1.0"
