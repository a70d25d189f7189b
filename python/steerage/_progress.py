"""Progress of a run: a bar of tqdm, or a function of the user."""

from __future__ import annotations

import sys

#: The import of typing would take a third of the time of the package's import. Type checkers take this for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional


def in_notebook() -> bool:
    """Return whether the code runs in a notebook, which shows the bar of each cell below the cell."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(base.__name__ == "ZMQInteractiveShell" for base in type(shell).__mro__)


def checked(progress: Any) -> Any:
    """Raise an exception if this is no argument for progress."""
    if progress not in (None, True, False) and not callable(progress):
        raise TypeError(f"progress={progress!r}: give True, False, None, or a function of the bytes read and of all bytes")
    return progress


def shown(progress: Any) -> Optional[Callable[[int, Optional[int], bool], Any]]:
    """Return the function that shows the progress of one run, or None if nothing is shown.

    It gets the bytes that were read, all bytes if they are known, and whether the run is over.
    """
    if progress is False or (progress is None and not in_notebook()):
        return None
    if callable(progress):
        return lambda read, total, is_over: progress(read, total)
    try:
        from tqdm.auto import tqdm
    except ImportError:
        if progress is None:
            return None
        raise ImportError("progress=True needs tqdm: pip install tqdm, or give a function") from None
    bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, desc="steerage")

    def show(read: int, total: Optional[int], is_over: bool) -> None:
        bar.total = total
        bar.update(read - bar.n)
        if is_over:
            bar.close()

    return show
