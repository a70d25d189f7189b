"""Packets, the headers of a packet, and splitting."""

from __future__ import annotations

import io
import os
import subprocess

import pyarrow as pa
import pytest
import steerage
from conftest import need
from frames import ACK, PSH, START, connection, ethernet, many, pcap, tcp, udp


def table(source, *arguments, **options):
    return pa.table(steerage.packets(source, *arguments, **options))


def test_packets_by_hand():
    frame = udp(("10.0.0.1", 5), ("192.0.2.1", 53), b"abc", vlan=7)
    # Ethernet pads short frames, and the padding is no payload.
    segment = tcp(("10.0.0.1", 5), ("192.0.2.1", 80), PSH | ACK, payload=b"xy") + b"\0" * 20
    other = ethernet(b"\0" * 28, 0x0806)
    rows = table(pcap([(START, frame), (START + 1, segment), (START + 2, other)]), ["payload", "length"]).to_pylist()
    assert rows == [{"payload": b"abc", "length": len(frame)}, {"payload": b"xy", "length": 76}, {"payload": None, "length": 42}]
    [one, two, three] = table(pcap([(START, frame), (START + 1, segment), (START + 2, other)])).to_pylist()
    assert (one["source"], one["source_port"], one["destination"], one["destination_port"]) == ("10.0.0.1", 5, "192.0.2.1", 53)
    assert (one["protocol"], one["vlan"], one["tcp_flags"], one["link"]) == (17, 7, None, 1)
    assert (two["protocol"], two["tcp_flags"], two["captured"]) == (6, PSH | ACK, 76)
    assert (three["protocol"], three["source"], three["source_port"]) == (None, None, None)
    assert "data" not in one


def test_rows_are_in_the_order_of_the_source():
    packets = many(1000, 3)
    times = table(pcap(packets), ["time", "data"])
    assert times["time"].cast(pa.int64()).to_pylist() == [time for time, _ in packets]
    assert times["data"].to_pylist() == [data for _, data in packets]
    # With more CPUs, all rows are there.
    times = table(pcap(packets), ["time"], cpus=4)
    assert sorted(times["time"].cast(pa.int64()).to_pylist()) == [time for time, _ in packets]


# The longest packets, and full Ethernet frames that fill more batches than are collected for the schema.
@pytest.mark.parametrize("size, packets", [(262_144, 100), (1514, 40_000)])
def test_batches_are_limited_in_bytes(size, packets):
    data = bytes(size - 8)
    source = ((START + nth, nth.to_bytes(8, "big") + data) for nth in range(packets))
    seen = 0
    for batch in pa.RecordBatchReader.from_stream(steerage.packets(source, ["data"], link="ethernet")):
        assert batch.nbytes < (8 << 20) + size + 4 * batch.num_rows + 4
        for value in batch.column(0):
            assert value.as_buffer().to_pybytes() == seen.to_bytes(8, "big") + data
            seen += 1
    assert seen == packets


def test_tshark_says_the_same(demo):
    from shutil import which

    need(which("tshark"), "tshark")
    fields = ["frame.len", "ip.src", "tcp.srcport", "udp.dstport", "tcp.len"]
    command = ["tshark", "-n", "-r", demo, "-T", "fields", "-E", "occurrence=l", *(x for field in fields for x in ("-e", field))]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    theirs = [line.split("\t") for line in said.splitlines()]
    rows = table(demo, ["length", "source", "protocol", "source_port", "destination_port", "payload"]).to_pylist()
    assert len(rows) == len(theirs) == 1000
    for row, (length, source, tcp_port, udp_port, tcp_bytes) in zip(rows, theirs):
        assert row["length"] == int(length)
        assert not source or row["source"] == source
        assert not tcp_port or row["source_port"] == int(tcp_port)
        assert not udp_port or row["destination_port"] == int(udp_port)
        assert not tcp_bytes or len(row["payload"]) == int(tcp_bytes)


def test_unknown_columns():
    with pytest.raises(ValueError, match="there is no column `bytes`: the columns are time, length"):
        steerage.packets(b"", ["bytes"])


def test_explain():
    explained = steerage.explain(udp(("10.0.0.1", 5), ("192.0.2.1", 53), b"abc", vlan=7))
    assert explained["headers"] == [("Ethernet", 0), ("VLAN", 14), ("IPv4", 18), ("UDP", 38)]
    assert (explained["flow"], explained["vlans"], explained["payload_offset"]) == ("udp 10.0.0.1:5 > 192.0.2.1:53", [7], 46)
    assert (explained["source"], explained["destination_port"], explained["tcp_flags"]) == ("10.0.0.1", 53, None)
    assert steerage.explain(b"")["headers"] == []
    with pytest.raises(ValueError, match="unknown link type"):
        steerage.explain(b"", link="x")


def test_split(tmp_path):
    packets = many(200, 3) + connection(("10.9.0.1", 1), ("192.0.2.1", 2), START)
    paths = steerage.split(pcap(packets), 3, directory=tmp_path)
    assert [os.path.basename(path) for path in paths] == ["part-0.pcapng", "part-1.pcapng", "part-2.pcapng"]
    flows = [pa.table(steerage.meter(path)) for path in paths]
    assert all(part.num_rows > 20 for part in flows)
    ends = [set(zip(part["source"].to_pylist(), part["source_port"].to_pylist())) for part in flows]
    assert sum(map(len, ends)) == len(set().union(*ends)) == 201
    assert sum(sum(part["packets"].to_pylist()) + sum(part["packets_back"].to_pylist()) for part in flows) == len(packets)
    assert sorted(data for path in paths for data in table(path, ["data"])["data"].to_pylist()) == sorted(data for _, data in packets)
    with pytest.raises(ValueError, match="n=0"):
        steerage.split(b"", 0)
    with pytest.raises(ValueError, match="'flow', 'hosts'"):
        steerage.split(pcap(packets), 2, directory=tmp_path, together="all")
    with pytest.raises(steerage.CaptureError):
        steerage.split(pcap(packets)[:-1], 2, directory=tmp_path)
    with pytest.raises(steerage.CaptureError, match="cannot create"):
        steerage.split(pcap(packets), 2, directory=tmp_path / "none")


def test_packets_before_an_error_of_the_source_count():
    def source():
        yield from many(10, 1)
        raise OSError("the disk is gone")

    flows = steerage.packets(source(), ["length"], link="ethernet", strict=False)
    assert pa.RecordBatchReader.from_stream(flows).read_all().num_rows == 10


def test_two_streams_read_one_file_object_at_a_time():
    capture = pcap([(START + nth, bytes(10_000)) for nth in range(2000)])
    packets = steerage.packets(io.BytesIO(capture), ["data"])
    readers = [pa.RecordBatchReader.from_stream(packets) for _ in range(2)]
    # The readers take turns, so both streams read the file at a time.
    counts = [0, 0]
    while any(batches := [next(reader, None) for reader in readers]):
        counts = [count + (batch.num_rows if batch else 0) for count, batch in zip(counts, batches)]
    assert counts == [2000, 2000]
