"""The exceptions of steerage. Each has one line of text, which says what was tried, on what, and what to do."""

from __future__ import annotations

#: The import of typing would take a third of the time of the package's import. Type checkers take this for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class SteerageError(Exception):
    """An operation of steerage failed."""


class CaptureError(SteerageError):
    """A capture cannot be opened, or not be read to its end.

    ``path`` is the file or the name of the source, and ``offset`` the position of the error in it, in bytes. ``offset`` is None
    if the capture could not be opened.
    """

    def __init__(self, message: str, path: Optional[str] = None, offset: Optional[int] = None) -> None:
        super().__init__(message, path, offset)
        self.path = path
        self.offset = offset

    def __str__(self) -> str:
        return str(self.args[0])


class FilterError(SteerageError, ValueError):
    """A filter cannot be compiled."""
