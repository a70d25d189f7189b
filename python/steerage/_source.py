"""Sources of packets, in the forms that the native code reads: paths, bytes, or a pipe that a thread fills."""

from __future__ import annotations

import os
import stat
import struct
import threading
from types import SimpleNamespace

from . import _native

#: The import of typing would take a third of the time of the package's import. Type checkers take this for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional

#: The number of bytes that are read from a file object at a time.
READ_BYTES = 1 << 20

#: The first word of a capture with times in nanoseconds (pcap).
NANOSECONDS = 0xA1B23C4D

#: The longest packet of a capture, as in tcpdump.
PACKET_BYTES_MAX = 262_144

#: The link types with a name. Any other link type is a number of tcpdump.org/linktypes.html.
LINKS = {"ethernet": 1, "raw": 101, "linux_sll": 113, "linux_sll2": 276}


def is_path(source: Any) -> bool:
    """Return whether the source names one file."""
    return isinstance(source, (str, os.PathLike))


class Source:
    """A source that several runs can read, if its kind allows that."""

    def __init__(self, source: Any, link: Any = None, is_live: bool = False) -> None:
        self.source = source
        self.link = None if link is None else link_number(link)
        self._start: Optional[int] = None
        self._is_used = False
        self._lock = threading.Lock()
        if is_live:
            if not isinstance(source, str):
                raise TypeError("interval= is for the name of an interface: a capture has no intervals")
            self.kind = "live"
        elif is_path(source):
            self.kind = "paths"
            self.source = [os.fspath(source)]
        elif isinstance(source, (bytes, bytearray, memoryview)):
            self.kind = "bytes"
            self.source = bytes(source)
        elif hasattr(source, "read"):
            self.kind = "file"
        elif isinstance(source, (list, tuple)) and source and all(map(is_path, source)):
            self.kind = "paths"
            self.source = [os.fspath(path) for path in source]
        elif hasattr(source, "__iter__"):
            self.kind = "packets"
            if self.link is None:
                raise TypeError("packets need a link type: give link='ethernet' or a number")
        else:
            raise TypeError(
                f"cannot read packets from {type(source).__name__}: give a path, a list of paths, a binary file object, "
                "bytes, or an iterable of (time_ns, bytes)"
            )
        if self.kind == "paths":
            # A FIFO can be opened only once, so its content is not checked here.
            regular = [path for path in self.source if not is_fifo(path)]
            if regular:
                _native.check_paths(regular)
        if self.link is not None and self.kind != "packets":
            raise TypeError("link= is for an iterable of packets: a capture has its own link type")

    def given(self, **options: Any) -> SimpleNamespace:
        """Return the arguments of a run. A thread feeds the run if the source is a Python object."""
        given = SimpleNamespace(source=self.source, name=self.kind, feed=None, **options)
        if self.kind in ("file", "packets"):
            blocks = self._blocks()
            name = getattr(self.source, "name", None)
            given.name = name if isinstance(name, str) else f"{type(self.source).__name__} object"
            given.feed = _native.Feed()
            given.source, writer = os.pipe()
            threading.Thread(target=feed, args=(blocks, writer, given.feed), name="steerage", daemon=True).start()
        return given

    def _blocks(self) -> Iterator[bytes]:
        if self.kind == "packets":
            iterator = iter(self.source)
            if iterator is self.source:
                self._use_once("an iterator")
            return pcap(iterator, self.link or 0)
        if self._start is None and not self._is_used:
            try:
                start = self.source.tell()
                self.source.seek(start)
                self._start = start
            except (AttributeError, OSError):
                pass
        if self._start is None:
            self._use_once("a file object that cannot seek")
            return iter(lambda: self.source.read(READ_BYTES), b"")
        self._is_used = True
        return self._blocks_of_file(self._start)

    def _blocks_of_file(self, at: Any) -> Iterator[bytes]:
        """Read a file object from a position of its own, because two streams may read it at a time."""
        while True:
            with self._lock:
                self.source.seek(at)
                block = self.source.read(READ_BYTES)
                at = self.source.tell()
            if not block:
                return
            yield block

    def _use_once(self, what: str) -> None:
        if self._is_used:
            raise ValueError(f"{what} can be read only once: collect the result, or give a path")
        self._is_used = True


def is_fifo(path: Any) -> bool:
    """Return whether the path is a FIFO."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def link_number(link: Any) -> int:
    """Return the number of a link type."""
    number = LINKS.get(link, link) if isinstance(link, str) else link
    if not isinstance(number, int) or not 0 <= number <= 0xFFFF:
        raise ValueError(f"unknown link type {link!r}: give one of {', '.join(LINKS)}, or a number from 0 to 65535")
    return number


def pcap(packets: Iterator[Any], link: int) -> Iterator[bytes]:
    """Write packets as a capture. A packet is a time in nanoseconds since 1970, and its bytes."""
    yield struct.pack("=IHHiIII", NANOSECONDS, 2, 4, 0, 0, PACKET_BYTES_MAX, link)
    waiting = bytearray()
    whole = 0
    try:
        for time, data in packets:
            seconds, nanoseconds = divmod(time, 1_000_000_000)
            if len(data) > PACKET_BYTES_MAX:
                raise ValueError(f"a packet has {len(data)} bytes, and at most {PACKET_BYTES_MAX} are allowed")
            waiting += struct.pack("=IIII", seconds, nanoseconds, len(data), len(data))
            waiting += data
            whole = len(waiting)
            if whole >= READ_BYTES:
                yield bytes(waiting)
                waiting.clear()
                whole = 0
    except Exception:
        # The packets before the error count.
        yield bytes(waiting[:whole])
        raise
    yield bytes(waiting)


def feed(blocks: Iterator[bytes], writer: int, told: Any) -> None:
    """Write blocks to a pipe. An exception ends the run with its text."""
    try:
        with os.fdopen(writer, "wb", buffering=0) as pipe:
            try:
                for block in blocks:
                    view = memoryview(block)
                    while view:
                        view = view[pipe.write(view) :]
            except BrokenPipeError:
                raise
            except BaseException as error:
                told.fail(f"cannot read the source: {type(error).__name__}: {error}")
    except BrokenPipeError:
        pass  # The run has ended.
