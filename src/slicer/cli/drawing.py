"""matplotlib, for those commands that draw: loaded, and made independent of the place."""

from __future__ import annotations

import io
import os

from slicer.errors import SlicerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 150


class NoMatplotlib(SlicerError):
    """The plotting library is not there, or does not work."""

    kind = "no-matplotlib"


def load() -> type[Figure]:
    """matplotlib's figure. What the user or the current directory has set for it does not count.

    It reads a file named matplotlibrc in the current directory, which may be anybody's: so not there. Raises
    NoMatplotlib.
    """
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlib(
            f"a plot needs matplotlib ({error})",
            hint="pip install matplotlib where slicer is installed (Debian: apt install python3-matplotlib)",
        ) from error
    finally:
        os.fchdir(here)
        os.close(here)
    matplotlib.rcdefaults()
    matplotlib.rcParams["svg.hashsalt"] = "slicer"  # the same picture of the same figures
    return Figure


def saved(figure: Figure, form: str) -> bytes:
    """The picture, as "png" or "svg"."""
    buffer = io.BytesIO()
    # Without a date: it would be the only difference between two pictures of the same figures.
    figure.savefig(buffer, format=form, dpi=_DPI, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()
