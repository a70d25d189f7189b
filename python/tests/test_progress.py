"""The progress of a run: a function, a bar, and a notebook."""

from __future__ import annotations

import io
import subprocess
import sys
import types

import pyarrow as pa
import pytest
import steerage
from frames import many, pcap
from test_meter import MANY, many_flows


def test_a_function_gets_the_bytes_read(demo):
    calls = []
    flows = steerage.meter(demo, progress=lambda read, total: calls.append((read, total)))
    assert calls == []
    pa.table(flows)
    size = flows.report["bytes_read"]
    assert calls[-1] == (size, size) and sorted(calls) == calls
    pa.table(flows)
    assert calls[-1] == (size, size)
    # The size of a Python source is not known.
    calls.clear()
    pa.table(steerage.packets(io.BytesIO(pcap(many(3))), progress=lambda read, total: calls.append((read, total))))
    assert calls[-1] == (len(pcap(many(3))), None)


def test_progress_is_shown_while_the_consumer_reads():
    """The end of a long run comes after the rows that are made before the stream starts."""
    data, calls = many_flows(), []
    reader = pa.RecordBatchReader.from_stream(
        steerage.meter(data, columns=["packets"], progress=lambda read, total: calls.append((read, total)))
    )
    before = len(calls)
    assert sum(batch.num_rows for batch in reader) == MANY
    assert calls[-1] == (len(data), len(data)) and len(calls) > before


def test_an_exception_of_the_function_ends_the_run(demo):
    def fail(read, total):
        raise LookupError("no screen")

    with pytest.raises(LookupError, match="no screen"):
        pa.table(steerage.meter(demo, progress=fail))


def test_a_bar_of_tqdm(demo, capfd):
    pytest.importorskip("tqdm")
    pa.table(steerage.meter(demo, progress=True))
    shown = capfd.readouterr().err
    assert "steerage: 100%" in shown and "\n" in shown


def test_a_notebook_shows_a_bar_and_a_script_does_not(demo, monkeypatch):
    calls = []

    class Bar:
        def __init__(self, **options):
            self.n, self.total = 0, None

        def update(self, more):
            self.n += more
            calls.append((self.n, self.total))

        def close(self):
            calls.append("closed")

    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    pa.table(steerage.meter(demo))
    assert calls == []

    class ZMQInteractiveShell:
        pass

    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=ZMQInteractiveShell))
    pa.table(steerage.meter(demo))
    assert calls[-1] == "closed" and calls[-2][0] == calls[-2][1] > 0
    calls.clear()
    pa.table(steerage.meter(demo, progress=False))
    assert calls == []
    # Without tqdm, a notebook shows nothing, and progress=True says what to install.
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    pa.table(steerage.meter(demo))
    with pytest.raises(ImportError, match="pip install tqdm"):
        pa.table(steerage.meter(demo, progress=True))
    with pytest.raises(TypeError, match="progress='yes': give True"):
        steerage.meter(demo, progress="yes")


def test_ctrl_c_while_a_bar_is_shown():
    """The signal comes while the source waits, and the function has been called."""
    script = """
import os, signal, sys, steerage
reader, writer = os.pipe()
class Quiet:
    def read(self, size):
        return os.read(reader, 1)
def show(read, total):
    os.kill(os.getpid(), signal.SIGINT)
try:
    steerage.meter(Quiet(), progress=show).__arrow_c_stream__()
except KeyboardInterrupt:
    print("interrupted")
    sys.stdout.flush()
    os._exit(0)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr
