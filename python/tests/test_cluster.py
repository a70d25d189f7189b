"""The scripts of examples/cluster, with a worker that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import steerage
from conftest import ROOT
from frames import pcap
from test_parts import cut, recording, rows

SCRIPT = ROOT / "examples" / "cluster" / "pool.py"


def files_of(directory):
    """A recording in 16 files, the size of whose parts differs. One file is empty."""
    packets = recording()
    cuts = [10 * nth + nth * nth for nth in range(1, 15)] + [10]
    paths = []
    for nth, part in enumerate(cut(packets, [min(cut, len(packets)) for cut in cuts])):
        paths.append(str(directory / f"{nth:02}.pcap"))
        (directory / f"{nth:02}.pcap").write_bytes(pcap(part))
    assert len(paths) == 16
    return packets, paths


def test_a_killed_worker_loses_nothing(tmp_path):
    packets, paths = files_of(tmp_path)
    # The process that reads this file first is killed by the writer of the FIFO.
    fifo = tmp_path / "05.fifo"
    os.mkfifo(fifo)
    data = open(paths[5], "rb").read()
    paths[5] = str(fifo)
    command = [sys.executable, str(SCRIPT), str(tmp_path / "flows"), *paths, "--processes", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        with open(fifo, "wb") as pipe:
            pipe.write(data[:100])
            pipe.flush()
            reader = reader_of(fifo, running.pid)
            os.kill(reader, signal.SIGKILL)
            wait_for_end(reader)
        with open(fifo, "wb") as pipe:
            pipe.write(data)
        said, complained = running.communicate(timeout=300)
    assert running.returncode == 0, complained
    assert said.startswith("16 files, ") and " 0 flows" not in said
    tables = [pq.read_table(path) for path in sorted((tmp_path / "flows").glob("*.parquet"))]
    assert len(tables) == 17
    assert rows(*tables) == rows(steerage.meter(pcap(packets), active_timeout=None))


def reader_of(fifo, parent):
    """The process that has the FIFO open for reading."""
    while True:
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/stat") as stat:
                    is_child = stat.read().rsplit(")", 1)[1].split()[1] == str(parent)
                links = [os.readlink(f"/proc/{process}/fd/{fd}") for fd in os.listdir(f"/proc/{process}/fd")]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if is_child and str(fifo) in links:
                return int(process)


def wait_for_end(process):
    """Wait until all threads of a killed process have ended, so that it is no reader of the FIFO any more."""
    try:
        while True:
            with open(f"/proc/{process}/stat") as stat:
                state = stat.read().rsplit(")", 1)[1].split()[0]
            # The first thread may have ended before others, which have the files open.
            if state in "ZX" and len(os.listdir(f"/proc/{process}/task")) == 1:
                return
    except OSError:
        pass


def test_a_file_that_is_no_capture(tmp_path):
    (tmp_path / "wrong.pcap").write_bytes(b"not a capture")
    command = [sys.executable, str(SCRIPT), str(tmp_path / "flows"), str(tmp_path / "wrong.pcap")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1 and ended.stderr.startswith(f"pool.py: {tmp_path}/wrong.pcap: cannot read the capture at byte 0"), ended.stderr
