"""A worker that is killed in the middle of a file, and the comparison of its flows with those of the whole. For trying an engine."""

import os
import signal

#: The columns that parts and the whole have in common (docs/cluster.md).
EQUAL = """first, last, kind, protocol, source, source_port, destination, destination_port, packets, bytes, ip_bytes, packets_back,
bytes_back, ip_bytes_back, tcp_flags, tcp_flags_back, vlan, vlan_inner, tunnel, tunnel_id, icmp_type, icmp_code"""


class Killed:
    """A capture whose first reader kills a process after half of the bytes. Later readers read on."""

    def __init__(self, path, marker, process):
        self._file, self._marker, self._process = open(path, "rb"), marker, process
        self._half = max(os.path.getsize(path) // 2, 1)

    def read(self, size):
        """Read at most half of the file."""
        if self._file.tell() >= self._half:
            try:
                os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(self._process, signal.SIGKILL)
                signal.pause()  # This process ends with the other one.
        return self._file.read(min(size, self._half))


def parent(process):
    """The parent of a process."""
    with open(f"/proc/{process}/stat", encoding="ascii") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def check(files, directory, marker=None):
    """Fail unless the flows in the directory are those of the whole, row by row, and a worker was killed."""
    import duckdb
    import steerage

    assert marker is None or os.path.exists(marker), "no worker was killed"
    whole = steerage.meter(files, active_timeout=None)
    duckdb.sql(f"create table whole as select {EQUAL} from whole")
    duckdb.sql(f"create table parts as select {EQUAL} from '{directory}/*.parquet'")
    for one, other in (("whole", "parts"), ("parts", "whole")):
        rows = duckdb.sql(f"from {one} except all from {other}").fetchall()
        assert not rows, f"only in {one}: {rows}"
    [(rows,)] = duckdb.sql("select count(*) from parts").fetchall()
    print(f"the {rows} flows are those of the whole" + (", and a worker was killed" if marker else ""))
