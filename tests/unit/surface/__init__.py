"""What people and scripts see of slicer, held against golden copies (see test_surface.py)."""
