"""The live view of ``slicer top``: a pure state, a pure page, and an edge that reads and draws.

Textual was weighed (Debian 12 does not have it, and the plain view would stay as a second one) and so was
rich (it draws, but reads no keys). ``slicer.columns`` fits text already, and the state is one record.
"""
