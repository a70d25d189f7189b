"""Tests .ci/values with programs that fail, without tshark: values_test.py .ci/values"""
import collections
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("values", sys.argv[1])
values = importlib.util.module_from_spec(importlib.util.spec_from_loader("values", loader))
loader.exec_module(values)

FLOW = dict(kind="tcp", source="10.0.0.1", source_port=1, destination="10.0.0.2", destination_port=2, handshake_us=None, tunnel=None)
WAY = ("tcp", "10.0.0.1", "1", "10.0.0.2", "2")
BACK = ("tcp", "10.0.0.2", "2", "10.0.0.1", "1")
KEY = frozenset((WAY[1:3], WAY[3:5])), "tcp"


def compare(program, rows=None, explained=None, names=("one.pcap",)):
    """The exit code and the text for captures that the program reads, if tshark has these rows."""
    nothing = collections.defaultdict(set)
    values.of_tshark = lambda capture: (dict(rows or {}), dict(explained or {}), collections.Counter(), nothing, nothing)
    with tempfile.TemporaryDirectory() as folder:
        steerage = pathlib.Path(folder, "steerage")
        steerage.write_text("#!/bin/sh\n" + program)
        steerage.chmod(0o755)
        for name in names:
            pathlib.Path(folder, name).touch()
        sys.argv = ["values", str(steerage), folder]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                values.main()
            except SystemExit as end:
                return end.code, out.getvalue()


def flows(**counts):
    """A program that writes a record with these counts."""
    record = {**FLOW, **counts}
    for name in ("packets", "retransmitted", "out_of_order", "zero_windows", "resets"):
        for back in ("", "_back"):
            record.setdefault(name + back, 0)
    # The file is the argument after --flows.
    return f"""while [ "$1" != --flows ]; do shift; done; echo '{values.json.dumps(record)}' > "$2"\n"""


equal = {WAY: [3, 0, 0, 0, 0]}
code, text = compare(flows(packets=3), equal)
assert code == 0 and "1 equal rows" in text, text
code, text = compare(flows(packets=4), equal)
assert code == 1 and "1 different rows" in text, text
code, text = compare("echo 'steerage: no capture' >&2; exit 1")
assert code == 0 and "1 captures that steerage refuses" in text, text

# Even if the flows are right.
for end, name in [("kill -SEGV $$", "-11"), ("exit 101", "101"), ("exit 2", "2")]:
    for program in (end, flows(packets=3) + end):
        code, text = compare(program, equal)
        assert code == 1 and f"one.pcap: steerage ended with {name}" in text, text
values.SECONDS_MAX = 0.2
code, text = compare("exec sleep 60")
assert code == 1 and "one.pcap" in text and "timed out" in text, text
values.SECONDS_MAX = 60
code, text = compare("exit 1", names=("one.txt",))
assert code not in (0, None), code

# A direction that tshark does not have is different, but the other direction stays explained.
for way, back in ((WAY, ""), (BACK, "_back")):
    counts = {"packets": 3, "packets_back": 3, "retransmitted" + back: 1}
    code, text = compare(flows(**counts), {way: [3, 0, 0, 0, 0]}, {KEY: {"a cut header"}})
    assert code == 1 and "1 different rows" in text and "'a cut header': 1" in text, text
