"""``slicer serve``: a proxy in front of a GPU server that holds a lease only while the server is in use."""
