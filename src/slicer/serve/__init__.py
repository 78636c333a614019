"""``slicer serve``: a proxy before a GPU server, which holds a lease only while somebody asks the server."""
