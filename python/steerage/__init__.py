"""Flows of network captures as Arrow columns, on all CPUs of this machine.

>>> import polars, steerage
>>> flows = polars.DataFrame(steerage.meter("capture.pcap"))

Results have the Arrow PyCapsule interface, which pyarrow, polars, DuckDB, pandas and other libraries read without a copy.
docs/python.md lists the columns and their units.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

from . import _native, _progress
from ._errors import CaptureError, FilterError, SteerageError
from ._source import Source, link_number

#: The import of typing would take a third of the time of the package's import. Type checkers take this for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

__all__ = [
    "CaptureError",
    "FilterError",
    "Flows",
    "Interval",
    "Live",
    "Merged",
    "Packets",
    "Part",
    "SteerageError",
    "explain",
    "merge",
    "meter",
    "meter_part",
    "packets",
    "split",
]
__version__ = _native.__version__

#: The largest number of flows at the same time, if a call names none. A flow takes up to 254 bytes.
MAX_FLOWS = 1 << 20

#: The largest number of captures that one call can write.
PARTS_MAX = 64


def _loaded(report: str) -> dict:
    import json  # It takes most of the time of the package's import.

    return json.loads(report)


class Rows:
    """Rows in memory, as a table with the Arrow PyCapsule interface."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a new stream of the rows."""
        return self._rows.stream()

    def __arrow_c_schema__(self) -> Any:
        """Return the schema of the rows."""
        return self._rows.schema()


class Interval(Rows):
    """The flows that ended in an interval of a live run, as a table.

    ``report`` has the counts of the interval: received, delivered and dropped packets. The metadata of the schema has the ledger
    from the beginning of the run (``steerage.report``).
    """

    def __init__(self, rows: Any, before: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self._total: dict = _loaded(rows.report)
        dropped, old = self._total["dropped"], before.get("dropped", {})
        self.report: dict = {
            key: self._total[key] - before.get(key, 0) for key in ("received", "received_bytes", "delivered")
        }
        self.report["dropped"] = {key: count - old.get(key, 0) for key, count in dropped.items() if count > old.get(key, 0)}

    def __repr__(self) -> str:
        return f"<steerage.Interval {self.report}>"


class Flows:
    """The flows of a source, as a table with the Arrow PyCapsule interface.

    Nothing is read until a library asks for the stream. Each stream reads the source again, so a library may scan twice. Sources
    that can be read only once, such as a generator, raise ``ValueError`` for the second stream.
    """

    def __init__(self, source: Source, run: Mapping[str, Any], options: Mapping[str, Any], strict: bool) -> None:
        self._source, self._run, self._options, self._strict = source, dict(run), dict(options), strict
        self._last: Any = None
        self._progress: Any = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a new stream of the flows. The schema is always that of steerage, whatever is requested."""
        progress = _progress.shown(self._progress)
        self._last = self._start(self._source.given(**self._run, progress=progress))
        return self._last.stream(self._strict)

    def _start(self, given: Any) -> Any:
        return _native.meter(given, SimpleNamespace(**self._options), self._strict)

    def _schema(self, report: Optional[str]) -> Any:
        return _native.flow_schema(self._options["columns"], report, self._options["cic"])

    def __arrow_c_schema__(self) -> Any:
        """Return the schema. Its metadata has ``steerage.report`` after a stream was read to its end."""
        return self._schema(None if self._last is None else self._last.report)

    @property
    def report(self) -> Optional[dict]:
        """The ledger of the last stream: received = delivered + sum(dropped) + in_flight, all in packets.

        None until a stream was read to its end. docs/python.md lists the keys.
        """
        report = None if self._last is None else self._last.report
        return None if report is None else _loaded(report)

    def check(self) -> None:
        """Raise the exception of the last stream, if the source could not be read to its end.

        Libraries report an error in the middle of a stream as an exception of their own, with the same text.
        """
        if self._last is not None:
            self._last.check()

    def __reduce__(self) -> Any:
        if self._source.kind not in ("paths", "bytes"):
            raise TypeError(f"the table of a {self._source.kind} source cannot be pickled: give a path or bytes")
        return _flows, (type(self), self._source.source, self._run, self._options, self._strict)

    def __repr__(self) -> str:
        return f"<steerage.{type(self).__name__} of {self._source.kind}>"


class Live(Flows):
    """The flows of an interface, in intervals: iterate over them.

    Other tables are not iterable, because some libraries would iterate over them instead of asking for the stream.
    """

    _interval: float

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Raise an exception: the table of an interval has a stream."""
        raise TypeError("a live source has no end: iterate over it, and read the table of each interval")

    def __iter__(self) -> Iterator[Interval]:
        """Return the intervals. The end of the iteration ends the run."""
        before: Mapping[str, Any] = {}
        is_over = False
        self._last = run = self._start(self._source.given(**self._run, progress=None))
        try:
            while not is_over:
                rows, is_over = run.interval(self._interval)
                interval = Interval(rows, before)
                before = interval._total
                yield interval
        finally:
            run.stop()


class Packets(Flows):
    """The packets of a source, as a table like :class:`Flows`."""

    def _start(self, given: Any) -> Any:
        return _native.packets(given, self._options["columns"], self._strict)

    def _schema(self, report: Optional[str]) -> Any:
        return _native.packet_schema(self._options["columns"], report)


class Part(Flows):
    """The flows of a part of a recording that no other part can continue, as a table.

    ``number`` is the number of the part. After the table was read to its end, ``edges`` has the other flows, for :func:`merge`.
    """

    def __init__(self, source: Source, run: Mapping[str, Any], options: Mapping[str, Any], strict: bool) -> None:
        super().__init__(source, run, options, strict)
        self.number: int = self._options["part"]

    @property
    def edge_table(self) -> Rows:
        """The edges as a table, with a row for each flow at an edge. :func:`merge` takes the table, or any copy of it."""
        return Rows(_native.edge_rows(self.edges))

    @property
    def edges(self) -> bytes:
        """The flows that begin before the part or go on after it, for :func:`merge`: about 160 bytes for each flow."""
        edges = None if self._last is None else self._last.edges
        if edges is None:
            raise ValueError("the edges are known after the flows of the part were read to their end: read them first")
        return edges

    def __repr__(self) -> str:
        return f"<steerage.Part {self.number}>"


class Merged(Rows):
    """Flows that several parts have together and no other part can continue, as a table.

    ``edges`` has the flows that other parts may continue. ``parts`` lists the first and the last number of each run of parts, and
    ``joined`` counts how often a flow of a part continued a flow of the part before it.
    """

    def __init__(self, merged: Any) -> None:
        super().__init__(merged.rows)
        self.edges: bytes = merged.edges
        self.parts: List[Tuple[int, int]] = merged.parts
        self.joined: int = merged.joined

    @property
    def edge_table(self) -> Rows:
        """The edges as a table, as for :class:`Part`."""
        return Rows(_native.edge_rows(self.edges))

    def __repr__(self) -> str:
        return f"<steerage.Merged {self.parts}>"


def _flows(kind: Any, source: Any, run: Mapping[str, Any], options: Mapping[str, Any], strict: bool) -> Flows:
    return kind(Source(source), run, options, strict)


def _chosen(columns: Optional[Sequence[str]], cic: bool = False) -> Optional[List[str]]:
    """Return the columns as a list. Unknown columns are reported at once."""
    chosen = None if columns is None else list(columns)
    _native.flow_schema(chosen, None, cic)
    return chosen


def _run(filter: Optional[str], cpus: Optional[int], tunnels: str) -> Mapping[str, Any]:
    if tunnels not in ("inner", "outer"):
        raise ValueError(f"tunnels={tunnels!r}: give 'inner' or 'outer'")
    if cpus is not None and cpus < 1:
        raise ValueError(f"cpus={cpus}: give at least 1, or None for all")
    return {"filter": filter, "cpus": cpus, "outer": tunnels == "outer"}


def _timing(active_timeout: Optional[float], active: str, idle_timeout: float, max_flows: int) -> Mapping[str, Any]:
    seconds = float("inf") if active_timeout is None else float(active_timeout)
    idle = float(idle_timeout)
    if not seconds > 0 or not idle > 0:
        raise ValueError("a timeout must be more than 0 seconds; active_timeout=None means no limit")
    if active not in ("flow", "clock"):
        raise ValueError(f"active={active!r}: give 'flow' or 'clock'")
    if active == "clock" and active_timeout is None:
        raise ValueError("active='clock' needs a time: give active_timeout, in seconds")
    if max_flows < 1:
        raise ValueError(f"max_flows={max_flows}: give at least 1")
    return {"active": seconds, "by_clock": active == "clock", "inactive": idle, "max_flows": max_flows}


def _is_cic(features: Optional[str]) -> bool:
    if features not in (None, "cic"):
        raise ValueError(f"features={features!r}: give 'cic', or None")
    return features is not None


def meter(
    source: Any,
    *,
    columns: Optional[Sequence[str]] = None,
    filter: Optional[str] = None,
    cpus: Optional[int] = None,
    active_timeout: Optional[float] = 300.0,
    idle_timeout: float = 60.0,
    active: str = "flow",
    tunnels: str = "inner",
    names: bool = False,
    features: Optional[str] = None,
    max_flows: int = MAX_FLOWS,
    link: Any = None,
    strict: bool = True,
    interval: Optional[float] = None,
    progress: Any = None,
) -> Flows:
    """Meter the flows of a source: who talked to whom, when, and how much.

    :param source: a path, a list of paths that are read one after another, a binary file object, ``bytes``, or an iterable of
        ``(time_ns, bytes)``, where ``time_ns`` counts nanoseconds since 1970. Captures are pcap or pcapng, plain or packed by
        gzip or zstd.
    :param columns: the names of the columns, in this order. None for all.
    :param filter: an expression of tcpdump, which must be installed, or the numbers that ``tcpdump -ddd`` prints.
    :param cpus: the number of CPUs. None for all that this process may use.
    :param active_timeout: seconds after which a flow that continues gets another record. None for never.
    :param idle_timeout: seconds without a packet after which a flow ends.
    :param active: ``"flow"`` to count the active timeout from the first packet of each record, ``"clock"`` to begin new records at
        the multiples of the active timeout since 1970 (UTC), for all flows alike.
    :param tunnels: ``"inner"`` for the flows in tunnels, ``"outer"`` for the tunnels themselves.
    :param names: look for names in DNS, TLS and HTTP packets. Without it, the columns of names have no values.
    :param features: ``"cic"`` for the flow statistics of CICFlowMeter, which ``docs/python.md`` defines. Without ``columns``, the
        table has these columns alone.
    :param max_flows: the largest number of flows at the same time. If there are more, the flow that was idle longest ends.
    :param interval: listen to the interface that ``source`` names, and return an object to iterate over: each step has the flows
        that ended in this many seconds. The process needs the capability CAP_NET_RAW.
    :param link: the link type of an iterable of packets: ``"ethernet"``, ``"raw"``, ``"linux_sll"``, ``"linux_sll2"`` or a number.
    :param strict: raise an exception if the source cannot be read to its end. Otherwise the flows before the error are returned,
        and ``report["error"]`` has the text.
    :param progress: a function that is called about ten times a second with the bytes that were read, and with all bytes or None;
        True for a bar of tqdm. By default, a notebook shows the bar if tqdm is installed.
    :raises CaptureError: a source cannot be opened or read.
    :raises FilterError: the filter cannot be compiled.
    :raises ValueError: an argument has a wrong value.
    """
    cic = _is_cic(features)
    timing = _timing(active_timeout, active, idle_timeout, max_flows)
    options = {"columns": _chosen(columns, cic), **timing, "names": bool(names), "cic": cic, "part": None}
    if interval is not None and not interval > 0:
        raise ValueError(f"interval={interval}: give more than 0 seconds")
    kind = Flows if interval is None else Live
    flows = kind(Source(source, link, interval is not None), _run(filter, cpus, tunnels), options, strict)
    if isinstance(flows, Live):
        flows._interval = float(interval or 0.0)
    flows._progress = _progress.checked(progress)
    return flows


def packets(
    source: Any,
    columns: Optional[Sequence[str]] = None,
    *,
    filter: Optional[str] = None,
    cpus: Optional[int] = 1,
    tunnels: str = "inner",
    link: Any = None,
    strict: bool = True,
    progress: Any = None,
) -> Packets:
    """Read the packets of a source: a row for each.

    :param columns: the names of the columns, in this order. None for all except ``payload`` and ``data``, which copy the bytes.
    :param cpus: the number of CPUs. With one, rows are in the order of the source. With more, only the packets of a flow are. None
        for all that this process may use.

    The other parameters are those of :func:`meter`.
    """
    chosen = None if columns is None else list(columns)
    _native.packet_schema(chosen, None)
    table = Packets(Source(source, link), _run(filter, cpus, tunnels), {"columns": chosen}, strict)
    table._progress = _progress.checked(progress)
    return table


def explain(data: bytes, *, link: Any = "ethernet", tunnels: str = "inner") -> dict:
    """Explain the headers of one packet.

    :param data: the bytes of the packet, from the link header on.
    :returns: ``headers`` as pairs of a name and an offset in bytes, ``flow``, ``end`` (why reading ended), addresses, ports and more.
    """
    return _native.explain(bytes(data), link_number(link), _run(None, None, tunnels)["outer"])


def split(
    source: Any,
    n: int,
    *,
    directory: Any = ".",
    together: str = "flow",
    filter: Optional[str] = None,
    tunnels: str = "inner",
    link: Any = None,
) -> List[str]:
    """Write the packets of a source to ``n`` captures, with whole flows in each, as ``steerage parallel`` does.

    :param directory: where the captures are made: ``part-0.pcapng`` and so on. Captures of these names are replaced.
    :param together: what stays in one capture: ``"flow"`` for both directions of a flow, ``"hosts"`` for all flows between two
        addresses, ``"source"`` or ``"destination"`` for all packets from or to an address.
    :returns: the paths of the captures, in order.
    """
    if not 1 <= n <= PARTS_MAX:
        raise ValueError(f"n={n}: give a number from 1 to {PARTS_MAX}")
    paths = [os.path.join(os.fspath(directory), f"part-{nth}.pcapng") for nth in range(n)]
    _native.split(Source(source, link).given(**_run(filter, 1, tunnels), progress=None), paths, together)
    return paths


def meter_part(
    source: Any,
    *,
    part: int,
    columns: Optional[Sequence[str]] = None,
    filter: Optional[str] = None,
    active_timeout: Optional[float] = None,
    idle_timeout: float = 60.0,
    active: str = "clock",
    tunnels: str = "inner",
    names: bool = False,
    features: Optional[str] = None,
    max_flows: int = MAX_FLOWS,
    link: Any = None,
    strict: bool = True,
    progress: Any = None,
) -> Part:
    """Meter one part of a recording, on one CPU. :func:`merge` joins the flows that cross the ends of parts.

    The statistics of ``features`` cannot be merged, so they are refused.

    :param part: the number of the part, in the order of time.
    :param active_timeout: seconds at whose multiples since 1970 (UTC) records end, as by ``meter(active="clock")``. None for never.
        A timeout from the first packet of a flow cannot be merged, because a part does not know when its flows began.
    :param source: as for :func:`meter`, and so are the other parameters.
    """
    if part < 0:
        raise ValueError(f"part={part}: give the number of the part, from 0 on")
    if active != "clock":
        raise ValueError(f"active={active!r}: parts can be merged only with active='clock', or with active_timeout=None")
    if _is_cic(features):
        raise ValueError(f"features={features!r}: parts have none, because merging needs the packets: meter the whole recording")
    timing = _timing(active_timeout, "flow" if active_timeout is None else "clock", idle_timeout, max_flows)
    options = {"columns": _chosen(columns), **timing, "names": bool(names), "cic": False, "part": part}
    table = Part(Source(source, link), _run(filter, 1, tunnels), options, strict)
    table._progress = _progress.checked(progress)
    return table


def _edges(part: Any) -> bytes:
    if isinstance(part, (bytes, bytearray, memoryview)):
        return bytes(part)
    if hasattr(part, "edges"):
        return part.edges
    if hasattr(part, "__arrow_c_stream__"):
        return _native.edges_of_rows(part.__arrow_c_stream__())
    raise TypeError(f"cannot merge {type(part).__name__}: give edges as bytes or as a table, or parts")


def merge(
    parts: Iterable[Union[bytes, Part, Merged, Any]], *, columns: Optional[Sequence[str]] = None, finish: bool = False
) -> Merged:
    """Join the flows that cross the ends of parts, in any order and grouping.

    :param parts: the edges of parts, or of what was merged before: as bytes, as tables, or objects that have ``edges``. The rows of a
        table may be in any order.
    :param columns: the names of the columns of the flows. None for all.
    :param finish: all parts are there, so all flows end.
    :raises ValueError: a part is there twice, a part between others or a row of a table is missing, or the parts have other timeouts.
    """
    return Merged(_native.merge([_edges(part) for part in parts], _chosen(columns), finish))
