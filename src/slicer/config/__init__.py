"""From configuration files to profiles in which every value is decided."""
