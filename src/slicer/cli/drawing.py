"""matplotlib, for the commands that draw: loaded so that its result does not depend on where it runs."""

from __future__ import annotations

import io
import os

from slicer.cli.common import NoLibrary, failing
from slicer.errors import UsageError
from slicer.outcome.outcome_file import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 150


def load() -> type[Figure]:
    """matplotlib's figure class, without the user's or the current directory's settings.

    matplotlib reads a file named matplotlibrc in the current directory, which may be anybody's. So it is
    imported in another directory. Raises NoLibrary.
    """
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoLibrary("matplotlib", f"a plot needs matplotlib ({error})") from error
    finally:
        os.fchdir(here)
        os.close(here)
    matplotlib.rcdefaults()
    matplotlib.rcParams["svg.hashsalt"] = "slicer"  # equal figures give equal pictures
    return Figure


def check(path: str, hint: str = "") -> None:
    """Raise UsageError for a picture's name with another ending."""
    if not path.lower().endswith((".png", ".svg")):
        message = f"expected a name that ends in .png or .svg, not {path!r:.60}"
        raise UsageError(message, where="--plot", hint=hint)


def saved(figure: Figure, form: str) -> bytes:
    """The picture, as "png" or "svg"."""
    buffer = io.BytesIO()
    # Without a date, which would be the only difference between two pictures of equal figures.
    figure.savefig(buffer, format=form, dpi=_DPI, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def write(figure: Figure, path: str) -> None:
    """Write the picture in the form that the end of its name says. Raises SlicerError."""
    picture = saved(figure, path[-3:].lower())
    with failing("the plot cannot be written", path):
        put(picture, os.path.abspath(path))
