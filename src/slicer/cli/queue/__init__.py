"""``slicer queue`` and its subcommands, each in a file of its own."""
