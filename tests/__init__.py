"""Tests of slicer; see CONTRIBUTING.md for the rings they run in."""
