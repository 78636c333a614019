"""The broker's rules: caps, fair share, the order, limits that may be asked of systemd. Pure."""
