"""Flows: values worked out by hand, and the program's own output."""

from __future__ import annotations

import datetime
import functools
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest
import steerage
from conftest import need
from frames import ACK, FIN, PSH, SECOND, START, SYN, connection, ethernet, ipv4, many, pcap, tcp, udp

CLIENT, SERVER = ("10.0.0.1", 40000), ("192.0.2.7", 443)


def rows(source, **options):
    """The flows as dictionaries, in the order in which they began."""
    table = pa.table(steerage.meter(source, **options))
    return sorted(table.to_pylist(), key=lambda row: (row["first"], row["source"] or "", row["source_port"] or 0))


def test_a_connection_by_hand():
    [flow] = rows(pcap(connection(CLIENT, SERVER, START)))
    assert (flow["source"], flow["source_port"], flow["destination"], flow["destination_port"]) == (*CLIENT, *SERVER)
    assert (flow["kind"], flow["protocol"], flow["end"]) == ("tcp", 6, "finished")
    # Six packets of 54 bytes with their headers, and 100 bytes of data. Four packets, and 1000 bytes of data.
    assert (flow["packets"], flow["bytes"], flow["ip_bytes"]) == (6, 6 * 54 + 100, 6 * 40 + 100)
    assert (flow["packets_back"], flow["bytes_back"], flow["ip_bytes_back"]) == (4, 4 * 54 + 1000, 4 * 40 + 1000)
    assert (flow["tcp_flags"], flow["tcp_flags_back"]) == (SYN | ACK | PSH | FIN, SYN | ACK | PSH | FIN)
    assert flow["handshake_us"] == 200_000
    assert (flow["retransmitted"], flow["out_of_order"], flow["closed_by"]) == (0, 0, "source")
    first = datetime.datetime.fromtimestamp(START // SECOND, datetime.timezone.utc)
    assert (flow["first"], flow["last"]) == (first, first + datetime.timedelta(seconds=0.9))
    assert (flow["vlan"], flow["tunnel"], flow["icmp_type"], flow["tls_sni"]) == (None, None, None, None)


def test_types_are_those_of_old_consumers():
    schema = pa.schema(steerage.meter(pcap([])))
    assert schema.field("first").type == pa.timestamp("ns", "UTC")
    assert schema.field("source").type == pa.utf8()
    assert schema.field("packets").type == pa.uint64()
    assert schema.field("source_port").type == pa.uint16()
    assert not schema.field("packets").nullable and schema.field("vlan").nullable
    assert all(not str(field.type).endswith("_view") for field in schema)


def test_timeouts_and_vlans():
    one = lambda at: (START + at * SECOND, udp(CLIENT, SERVER, b"abc", vlan=7))  # noqa: E731
    capture = pcap([one(0), one(50), one(111), one(160), one(219), one(278)])
    assert [(flow["packets"], flow["end"]) for flow in rows(capture)] == [(2, "idle"), (4, "forced")]
    assert [flow["packets"] for flow in rows(capture, idle_timeout=100)] == [6]
    assert [flow["packets"] for flow in rows(capture, idle_timeout=100, active_timeout=200)] == [4, 2]
    assert [flow["packets"] for flow in rows(capture, idle_timeout=1000, active_timeout=None)] == [6]
    assert [flow["packets"] for flow in rows(capture, idle_timeout=10)] == [1] * 6
    assert {flow["vlan"] for flow in rows(capture)} == {7}


def test_tunnels():
    inner = ipv4("10.1.0.1", "10.1.0.2", 17, bytes([0, 1, 0, 2, 0, 8, 0, 0]))
    frame = ethernet(ipv4("192.0.2.1", "192.0.2.2", 47, b"\0\0\x08\0" + inner))
    [flow] = rows(pcap([(START, frame)]))
    assert (flow["source"], flow["destination_port"], flow["tunnel"]) == ("10.1.0.1", 2, "GRE")
    [flow] = rows(pcap([(START, frame)]), tunnels="outer")
    assert (flow["source"], flow["protocol"], flow["tunnel"]) == ("192.0.2.1", 47, None)


def test_names():
    query = b"\0\1\1\0\0\1\0\0\0\0\0\0\3www\7example\3com\0\0\x1c\0\1"
    capture = pcap([(START, udp(("10.0.0.1", 9), ("192.0.2.1", 53), query))])
    assert (rows(capture)[0]["dns_query"], rows(capture)[0]["dns_type"]) == (None, None)
    [flow] = rows(capture, names=True)
    assert (flow["dns_query"], flow["dns_type"]) == ("www.example.com", 28)


def test_the_program_says_the_same(demo, program):
    said = subprocess.run(
        [program, "meter", demo, "--flows", "-", "--json", "-q", "--names"], check=True, capture_output=True, text=True
    ).stdout
    theirs = [json.loads(line) for line in said.splitlines()]
    table = pa.table(steerage.meter(demo, names=True))
    assert table.column_names == list(theirs[0])
    for name in ("first", "last"):
        nanoseconds = table[name].cast(pa.int64()).to_pylist()
        texts = [f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(n // SECOND))}.{n % SECOND:09}Z" for n in nanoseconds]
        table = table.set_column(table.column_names.index(name), name, pa.array(texts))
    order = lambda row: json.dumps(row, sort_keys=True)  # noqa: E731
    assert sorted(table.to_pylist(), key=order) == sorted(theirs, key=order)
    assert len(theirs) == 92


def test_columns_are_chosen_and_ordered(demo):
    table = pa.table(steerage.meter(demo, columns=["bytes", "source"]))
    assert (table.column_names, table.num_rows) == (["bytes", "source"], 92)
    with pytest.raises(ValueError, match="there is no column `byte`: the columns are first, last"):
        steerage.meter(demo, columns=["byte"])


@pytest.mark.parametrize("cpus", [1, 2, 7, None])
def test_the_number_of_cpus_changes_nothing(cpus):
    capture = pcap(many(5000))
    flows = rows(capture, cpus=cpus)
    assert len(flows) == 5000 and {flow["packets"] for flow in flows} == {2}


def test_all_sources_give_the_same_flows(demo, tmp_path):
    with open(demo, "rb") as file:
        data = file.read()
    expected = rows(demo)
    packed = subprocess.run(["gzip", "-c"], input=data, check=True, capture_output=True).stdout
    assert rows(data) == expected and rows(bytearray(data)) == expected and rows(packed) == expected
    with open(demo, "rb") as file:
        assert rows(file) == expected
        with pytest.raises(steerage.CaptureError, match="empty"):
            rows(file)  # It is at its end.
    assert rows(io.BytesIO(packed)) == expected
    # Two captures, one after the other.
    (tmp_path / "one.pcap").write_bytes(pcap(many(10)))
    assert len(rows([demo, tmp_path / "one.pcap"])) == 92 + 10
    packets = many(10)
    assert rows(packets, link="ethernet") == rows(pcap(packets))
    assert rows(iter(packets), link=1) == rows(pcap(packets))
    assert rows((packet for packet in packets), link=1) == rows(pcap(packets))


def test_a_pipe_is_read_as_it_fills():
    reader, writer = os.pipe()
    data = pcap(many(3000))

    def write():
        with os.fdopen(writer, "wb") as pipe:
            for at in range(0, len(data), 10_000):
                pipe.write(data[at : at + 10_000])

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader, "rb") as pipe:
        assert len(rows(pipe)) == 3000
    thread.join()


def test_a_filter(demo):
    need(shutil.which("tcpdump"), "tcpdump")
    lines = subprocess.run(["tcpdump", "-nr", demo, "tcp"], check=True, capture_output=True).stdout.splitlines()
    flows = rows(demo, filter="tcp")
    assert {flow["kind"] for flow in flows} == {"tcp"}
    assert sum(flow["packets"] + flow["packets_back"] for flow in flows) == len(lines) > 100
    with open(demo, "rb") as file:
        assert rows(file, filter="tcp") == flows
    with pytest.raises(steerage.FilterError, match="tcpdump refuses the filter `no such thing`"):
        rows(demo, filter="no such thing")


def test_each_call_makes_a_new_stream(demo):
    flows = steerage.meter(demo)
    one, two = pa.table(flows), pa.table(flows)
    assert one.num_rows == two.num_rows == 92
    once = steerage.meter(iter(many(3)), link=1)
    assert pa.table(once).num_rows == 3
    with pytest.raises(ValueError, match="an iterator can be read only once"):
        pa.table(once)


def test_the_ledger(demo):
    flows = steerage.meter(demo)
    assert flows.report is None
    table = pa.table(flows)
    report = flows.report
    assert (report["received"], report["delivered"], report["dropped"], report["in_flight"]) == (1000, 1000, {}, 0)
    assert (report["flows"], report["evicted"], report["lost"], report["error"]) == (92, 0, 0, None)
    assert report["received_bytes"] == 479_907 and report["links"] == [1]
    # The run ended before the stream began, so the schema has the ledger too.
    assert json.loads(table.schema.metadata[b"steerage.report"]) == report
    assert json.loads(pa.schema(flows).metadata[b"steerage.report"]) == report
    assert table.schema.metadata[b"steerage.version"] == steerage.__version__.encode()
    few = steerage.meter(pcap(many(100)), max_flows=10)
    evicted = [row["end"] for row in pa.table(few).to_pylist()].count("resources")
    assert few.report["evicted"] == evicted > 0


#: More flows than are collected before a table has its schema.
MANY = 270_000


@functools.lru_cache
def many_flows():
    """A capture with many flows."""
    return pcap(many(MANY, 1))


def test_many_batches_arrive_whole():
    flows = steerage.meter(many_flows(), columns=["source", "packets"])
    reader = pa.RecordBatchReader.from_stream(flows)
    # The ledger is not known yet.
    assert b"steerage.report" not in reader.schema.metadata
    sizes, sources = [], set()
    for batch in reader:
        sizes.append(batch.num_rows)
        sources.update(batch.column(0).to_pylist())
    assert sum(sizes) == len(sources) == MANY and max(sizes) == 32_768
    assert flows.report["flows"] == MANY


def threads():
    """The names of the threads of runs."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        except FileNotFoundError:
            pass
    return [name for name in names if name.startswith(("steerage", "flows"))]


class Endless(io.RawIOBase):
    """A capture without an end: its packets come again and again."""

    def __init__(self, data, header=24):
        self.data, self.header, self.at = memoryview(data), header, 0

    def read(self, size=-1):
        part = self.data[self.at :] if size < 0 else self.data[self.at : self.at + size]
        self.at += len(part)
        if self.at == len(self.data):
            self.at = self.header
        return bytes(part)


# With a small table, flows end at once, so that they become rows.
@pytest.mark.parametrize("call", [functools.partial(steerage.meter, max_flows=100), steerage.packets])
def test_a_stream_that_is_dropped_ends_its_run(call):
    # The source has no end, so that only the consumer can end the run.
    reader = pa.RecordBatchReader.from_stream(call(Endless(many_flows())))
    reader.read_next_batch()
    assert threads()
    del reader
    deadline = time.monotonic() + 60
    while threads():
        assert time.monotonic() < deadline, threads()
        time.sleep(0.01)


def test_damage_is_an_exception(demo, tmp_path):
    path = tmp_path / "cut.pcap"
    data = pcap(many(10))
    path.write_bytes(data[:-5])
    with pytest.raises(steerage.CaptureError) as caught:
        rows(path)
    error = caught.value
    record = 16 + len(many(10)[-1][1])
    assert (error.path, error.offset) == (str(path), len(data) - record)
    assert str(error).startswith(f"{path}: cannot read the capture at byte {len(data) - record}: ")
    assert "\n" not in str(error) and pickle.loads(pickle.dumps(error)).offset == error.offset
    # The flows before the damage are sound.
    flows = steerage.meter(path, strict=False)
    assert pa.table(flows).num_rows == 10
    assert flows.report["error"] == str(error)
    with pytest.raises(steerage.CaptureError):
        flows.check()


# The run may end while a slow consumer still waits for the first rows.
@pytest.mark.parametrize("pause", [0, 0.3])
def test_damage_after_the_first_rows_is_an_error_of_the_consumer(pause):
    flows = steerage.meter(many_flows()[:-5], columns=["packets"], progress=lambda *_: time.sleep(pause))
    with pytest.raises(OSError, match="bytes: cannot read the capture at byte"):
        pa.table(flows)
    with pytest.raises(steerage.CaptureError):
        flows.check()


@pytest.mark.parametrize("source", ["/no/such/file.pcap", __file__, b"not a capture", b""])
def test_what_is_no_capture(source):
    with pytest.raises(steerage.CaptureError, match="cannot"):
        pa.table(steerage.meter(source))


def test_an_exception_of_the_source_ends_the_run():
    def packets():
        yield from many(5)
        raise RuntimeError("no more today")

    with pytest.raises(steerage.SteerageError, match="cannot read the source: RuntimeError: no more today"):
        pa.table(steerage.meter(packets(), link=1))

    class Broken(io.RawIOBase):
        def read(self, size=-1):
            raise OSError("unplugged")

    with pytest.raises(steerage.SteerageError, match="OSError: unplugged"):
        pa.table(steerage.meter(Broken()))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"cpus": 0}, "at least 1"),
        ({"idle_timeout": 0}, "more than 0"),
        ({"active_timeout": -1}, "more than 0"),
        ({"tunnels": "both"}, "'inner' or 'outer'"),
        ({"max_flows": 0}, "at least 1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        steerage.meter(b"", **arguments)


def test_wrong_sources():
    with pytest.raises(TypeError, match="packets need a link type"):
        steerage.meter(many(1))
    with pytest.raises(TypeError, match="cannot read packets from int"):
        steerage.meter(5)
    with pytest.raises(ValueError, match="unknown link type 'token ring'"):
        steerage.meter(many(1), link="token ring")
    with pytest.raises(TypeError, match="a capture has its own link type"):
        steerage.meter(b"", link=1)


def test_ctrl_c_stops_a_run():
    """A source that never ends: the signal comes while the run waits for it."""
    script = """
import os, signal, sys, steerage
reader, writer = os.pipe()
class Quiet:
    def read(self, size):
        os.kill(os.getpid(), signal.SIGINT)
        return os.read(reader, 1)
try:
    steerage.meter(Quiet()).__arrow_c_stream__()
except KeyboardInterrupt:
    print("interrupted")
    sys.stdout.flush()
    os._exit(0)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr


def test_flows_are_pickled(demo):
    flows = pickle.loads(pickle.dumps(steerage.meter(demo, columns=["bytes"])))
    assert pa.table(flows).num_rows == 92
    with pytest.raises(TypeError, match="give a path or bytes"):
        pickle.dumps(steerage.meter(io.BytesIO(b"")))
