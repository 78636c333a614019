"""The version of slicer. This is its only place."""

VERSION = "0.1.0.dev0"
