"""One look at the GPUs for all that the queue decides in a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicer.gpu.view import View

if TYPE_CHECKING:
    from slicer.placement.decision import Policy
    from slicer.state.statedir import StateDir


class SharedView(View):
    """A view that looks once, until :meth:`expire`."""

    def __init__(self, directory: StateDir | None, policy: Policy) -> None:
        super().__init__(directory, policy)
        self._is_fresh = False

    def expire(self) -> None:
        """Have the next :meth:`look` look again."""
        self._is_fresh = False

    def look(self) -> None:
        if not self._is_fresh:
            super().look()
            self._is_fresh = True
