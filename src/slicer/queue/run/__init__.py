"""Jobs that are being started, run, or have just ended."""
