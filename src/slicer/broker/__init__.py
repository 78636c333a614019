"""One ledger for all users of a machine: a root helper decides, records, and asks systemd for scopes.

``protocol`` is common to both ends, ``rules`` decides (both pure); ``server`` is the helper, ``client`` the
part for ``slicer run`` and the like. ``client`` and ``server`` do not need each other.
"""
