"""``slicer web`` and ``slicer metrics``: the live board for browsers, and figures for Prometheus."""
