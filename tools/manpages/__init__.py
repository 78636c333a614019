"""The manual pages in man/, made from the commands' own help and from the texts in docs/man.

A tool of development only: what is built is committed, so that nobody who installs slicer needs it.
"""
