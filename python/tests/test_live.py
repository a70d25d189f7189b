"""A live source, in a network namespace of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from shutil import which

import pytest
import steerage
from conftest import need

SCRIPT = """
import json, socket, steerage, pyarrow as pa
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.bind(("127.0.0.1", 4000))
packets, received = 0, 0
for nth, interval in enumerate(steerage.meter("lo", interval=0.2, idle_timeout=0.5)):
    if nth < 5:
        for _ in range(10):
            sender.sendto(b"abc", ("127.0.0.1", 4001))
    received += interval.report["received"]
    # pa.table would import pandas.
    table = pa.RecordBatchReader.from_stream(interval).read_all()
    total = json.loads(table.schema.metadata[b"steerage.report"])
    assert total["received"] == received and "dropped" in total, (total, received)
    flows = [row for row in table.to_pylist() if row["destination_port"] == 4001 and row["kind"] == "udp"]
    # If this process is not run for the idle timeout, its packets are in several flows.
    packets += sum(row["packets"] for row in flows)
    if packets >= 10:
        print(flows[0]["source_port"], received >= packets, interval.report["dropped"])
        break
    assert nth < 600
"""


def test_intervals_of_an_interface():
    need(os.geteuid() == 0 and which("unshare") and which("ip"), "root with unshare and ip")
    command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$0" -c "$1"', sys.executable, SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=pathlib.Path(__file__).parent)
    assert (ended.returncode, ended.stdout) == (0, "4000 True {}\n"), ended.stderr


def test_what_is_no_interface():
    with pytest.raises(steerage.CaptureError, match="nosuch0: cannot open it: there is neither"):
        next(iter(steerage.meter("nosuch0", interval=1.0)))
    with pytest.raises(TypeError, match="'Flows' object is not iterable"):
        iter(steerage.meter(b""))
    with pytest.raises(TypeError, match="iterate over it"):
        steerage.meter("lo", interval=1.0).__arrow_c_stream__()
    with pytest.raises(TypeError, match="a capture has no intervals"):
        steerage.meter(b"", interval=1.0)
    with pytest.raises(ValueError, match="more than 0 seconds"):
        steerage.meter("lo", interval=0)
