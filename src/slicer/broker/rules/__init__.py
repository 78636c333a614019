"""What the broker decides by: caps, fair share, the order, what may be asked of systemd. Pure."""
