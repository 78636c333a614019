"""``slicer wrap``: a shim in place of a program, so that each call of it goes through a route."""
