"""The flow statistics of CICFlowMeter: values worked out by hand, and from what tshark reads."""

from __future__ import annotations

import collections
import itertools
import math
import re
import shutil
import statistics
import subprocess

import pyarrow as pa
import pytest
import steerage
from conftest import ROOT, need
from frames import ACK, PSH, SECOND, START, connection, many, pcap, tcp, udp

MS = SECOND // 1000
A, B = ("10.0.0.1", 4000), ("192.0.2.7", 80)


def row(packets, **options):
    [only] = pa.table(steerage.meter(pcap(packets), features="cic", **options)).to_pylist()
    return only


def same(found, expected):
    for name, value in expected.items():
        assert found[name] == (value if value is None or isinstance(value, str) else pytest.approx(value, rel=1e-12)), name


def test_a_connection_worked_out_by_hand():
    found = row(connection(A, B, START))
    # The client sends at 0, 200, 300, 600, 700 and 900 ms, with 100 bytes at 300 ms. The server sends at 100, 400, 500 and 800 ms, with
    # 1000 bytes at 500 ms.
    expected = {
        "Flow ID": "10.0.0.1-192.0.2.7-4000-80-6",
        "Src IP": "10.0.0.1",
        "Src Port": 4000,
        "Dst IP": "192.0.2.7",
        "Dst Port": 80,
        "Protocol": 6,
        "Flow Duration": 900_000,
        "Total Fwd Packet": 6,
        "Total Bwd packets": 4,
        "Total Length of Fwd Packet": 100,
        "Total Length of Bwd Packet": 1000,
        "Fwd Packet Length Max": 100,
        "Fwd Packet Length Min": 0,
        "Fwd Packet Length Mean": 100 / 6,
        "Fwd Packet Length Std": math.sqrt((6 * 100**2 - 100**2) / 30),
        "Bwd Packet Length Max": 1000,
        "Bwd Packet Length Min": 0,
        "Bwd Packet Length Mean": 250,
        "Bwd Packet Length Std": 500,
        "Flow Bytes/s": 1100 / 0.9,
        "Flow Packets/s": 10 / 0.9,
        "Flow IAT Mean": 100_000,
        "Flow IAT Std": 0,
        "Flow IAT Max": 100_000,
        "Flow IAT Min": 100_000,
        "Fwd IAT Total": 900_000,
        "Fwd IAT Mean": 180_000,
        "Fwd IAT Std": math.sqrt(0.007) * 1e6,
        "Fwd IAT Max": 300_000,
        "Fwd IAT Min": 100_000,
        "Bwd IAT Total": 700_000,
        "Bwd IAT Mean": 700_000 / 3,
        "Bwd IAT Std": math.sqrt(0.04 / 3) * 1e6,
        "Bwd IAT Max": 300_000,
        "Bwd IAT Min": 100_000,
        "Fwd PSH Flags": 1,
        "Bwd PSH Flags": 1,
        "Fwd URG Flags": 0,
        "Bwd URG Flags": 0,
        "Fwd Header Length": 120,
        "Bwd Header Length": 80,
        "Fwd Packets/s": 6 / 0.9,
        "Bwd Packets/s": 4 / 0.9,
        "Packet Length Min": 0,
        "Packet Length Max": 1000,
        "Packet Length Mean": 110,
        "Packet Length Std": math.sqrt(8_890_000 / 90),
        "Packet Length Variance": 8_890_000 / 90,
        "FIN Flag Count": 2,
        "SYN Flag Count": 2,
        "RST Flag Count": 0,
        "PSH Flag Count": 2,
        "ACK Flag Count": 9,
        "URG Flag Count": 0,
        "CWR Flag Count": 0,
        "ECE Flag Count": 0,
        "Down/Up Ratio": 4 / 6,
        "Average Packet Size": 110,
        "Fwd Segment Size Avg": 100 / 6,
        "Bwd Segment Size Avg": 250,
        "Fwd Bytes/Bulk Avg": 0,
        "Fwd Packet/Bulk Avg": 0,
        "Fwd Bulk Rate Avg": 0,
        "Bwd Bytes/Bulk Avg": 0,
        "Bwd Packet/Bulk Avg": 0,
        "Bwd Bulk Rate Avg": 0,
        "Subflow Fwd Packets": 6,
        "Subflow Fwd Bytes": 100,
        "Subflow Bwd Packets": 4,
        "Subflow Bwd Bytes": 1000,
        "FWD Init Win Bytes": 1000,
        "Bwd Init Win Bytes": 1000,
        "Fwd Act Data Pkts": 1,
        "Fwd Seg Size Min": 20,
        "Active Mean": 900_000,
        "Active Std": 0,
        "Active Max": 900_000,
        "Active Min": 900_000,
        "Idle Mean": 0,
        "Idle Std": 0,
        "Idle Max": 0,
        "Idle Min": 0,
    }
    same(found, expected)
    assert set(found) - set(expected) == {"Timestamp"} and found["Timestamp"].timestamp() == START // SECOND


def test_pauses_and_bulks_worked_out_by_hand():
    # Active from 0 to 0, from 6 to 6.5 and from 14 to 14 s.
    pauses = [(START + at * MS, udp(A, B, b"x" * size)) for at, size in [(0, 3), (6000, 0), (6500, 0), (14_000, 5)]]
    expected = {
        "Active Mean": 500_000 / 3,
        "Active Max": 500_000,
        "Active Min": 0,
        "Active Std": math.sqrt((3 * 0.25 - 0.25) / 6) * 1e6,
        "Idle Mean": 6_750_000,
        "Idle Max": 7_500_000,
        "Idle Min": 6_000_000,
        "Idle Std": math.sqrt(2 * 0.75**2) * 1e6,
        "Subflow Fwd Packets": 4 / 3,
        "Subflow Fwd Bytes": 8 / 3,
        "Fwd Header Length": 32,
        "Fwd Seg Size Min": 8,
        "FWD Init Win Bytes": None,
        "Bwd Init Win Bytes": None,
        "Down/Up Ratio": 0,
    }
    same(row(pauses), expected)
    # Five packets of 100 bytes in 40 ms, one of the other side, three more, and four in 30 ms after a pause.
    times = [0, 10, 20, 30, 40], [60, 70, 80], [3000, 3010, 3020, 3030]
    data = [(START + at * MS, tcp(A, B, PSH | ACK, payload=b"d" * 100)) for at in itertools.chain(*times)]
    found = row(sorted([*data, (START + 50 * MS, tcp(B, A, ACK, payload=b"r"))]))
    expected = {"Fwd Bytes/Bulk Avg": 450, "Fwd Packet/Bulk Avg": 4.5, "Fwd Bulk Rate Avg": 900 / 0.07, "Bwd Bytes/Bulk Avg": 0}
    same(found, {**expected, "Fwd Act Data Pkts": 12, "Subflow Fwd Packets": 6})


def test_one_packet_has_no_rates():
    found = row(many(1, 1))
    same(found, {"Flow Bytes/s": None, "Flow Packets/s": None, "Fwd Packets/s": None, "Flow Duration": 0, "Flow IAT Min": 0})


def test_an_active_timeout_begins_new_statistics():
    packets = [(START + at * SECOND, udp(A, B, b"x" * size)) for at, size in [(0, 1), (5, 2), (12, 3)]]
    rows = pa.table(steerage.meter(pcap(packets), features="cic", active_timeout=10)).to_pylist()
    assert sorted((row["Total Fwd Packet"], row["Total Length of Fwd Packet"], row["Flow Duration"]) for row in rows) == [
        (1, 3, 0),
        (2, 3, 5e6),
    ]


def test_the_number_of_cpus_changes_nothing(demo):
    def rows(cpus):
        table = pa.table(steerage.meter(demo, features="cic", cpus=cpus))
        return sorted(table.to_pylist(), key=lambda row: (row["Flow ID"], row["Timestamp"]))

    assert rows(1) == rows(3)


def test_columns_of_both_kinds(demo):
    both = steerage.meter(demo, features="cic", columns=["Flow IAT Mean", "source", "tls_sni"], names=True)
    assert pa.table(both).column_names == ["Flow IAT Mean", "source", "tls_sni"]
    assert pa.schema(both) == pa.table(both).schema
    with pytest.raises(ValueError, match="no column `Flow IAT Mean`"):
        steerage.meter(demo, columns=["Flow IAT Mean"])
    with pytest.raises(ValueError, match="features='netflow': give 'cic'"):
        steerage.meter(demo, features="netflow")
    with pytest.raises(ValueError, match="features='cic': parts have none"):
        steerage.meter_part(demo, part=0, features="cic")


def test_the_page_defines_each_column(demo):
    page = (ROOT / "docs" / "python.md").read_text()
    section = page[page.index("## Flow statistics") : page.index("## Sources")]
    named = re.findall(r"`([^`]+)`", "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `")))
    assert named == pa.schema(steerage.meter(demo, features="cic")).names


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


def test_the_values_are_those_of_tshark(demo):
    need(shutil.which("tshark"), "tshark")
    fields = "frame.time_epoch ip.src ipv6.src ip.dst ipv6.dst tcp.srcport udp.srcport tcp.dstport udp.dstport".split()
    fields += "tcp.len udp.length tcp.hdr_len tcp.flags tcp.window_size_value".split()
    command = ["tshark", "-r", demo, "-T", "fields", *itertools.chain(*(("-e", field) for field in fields))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    flows = collections.defaultdict(list)
    for line in lines:
        time, *rest = line.split("\t")
        source, destination, from_port, to_port = (rest[at] or rest[at + 1] for at in (0, 2, 4, 6))
        length, datagram, header, flags, window = rest[8:]
        if not from_port:
            continue
        seconds, fraction = time.split(".")
        nanos = int(seconds) * SECOND + int(fraction.ljust(9, "0")[:9])
        payload, header = (int(length), int(header)) if length else (int(datagram) - 8, 8)
        ends = (source, from_port), (destination, to_port)
        packet = (nanos, ends[0], payload, header, int(flags or "0", 16), window)
        flows[frozenset(ends), bool(length)].append(packet)
    table = pa.table(steerage.meter(demo, features="cic", active_timeout=None, idle_timeout=1e6)).to_pylist()
    compared = 0
    for found in table:
        ends = frozenset([(found["Src IP"], str(found["Src Port"])), (found["Dst IP"], str(found["Dst Port"]))])
        packets = flows[ends, found["Protocol"] == 6]
        if len(packets) != found["Total Fwd Packet"] + found["Total Bwd packets"]:
            continue  # Several connections between the same ports.
        compared += 1
        times = [packet[0] for packet in packets]
        gaps = [(after - before) / 1000 for before, after in zip(times, times[1:])]
        forth = [packet for packet in packets if packet[1] == packets[0][1]]
        back = [packet for packet in packets if packet[1] != packets[0][1]]
        lengths = [packet[2] for packet in packets]
        expected = {
            "Flow Duration": (times[-1] - times[0]) / 1000,
            "Packet Length Mean": statistics.mean(lengths),
            "Packet Length Std": deviation(lengths),
            "Flow IAT Mean": statistics.mean(gaps or [0]),
            "Flow IAT Std": deviation(gaps),
            "Flow IAT Max": max(gaps or [0]),
            "Flow IAT Min": min(gaps or [0]),
        }
        for name, side in (("Fwd", forth), ("Bwd", back)):
            sizes = [packet[2] for packet in side]
            between = [(after[0] - before[0]) / 1000 for before, after in zip(side, side[1:])]
            expected[f"Total Length of {name} Packet"] = sum(sizes)
            expected[f"{name} Packet Length Max"] = max(sizes or [0])
            expected[f"{name} Packet Length Std"] = deviation(sizes)
            expected[f"{name} Header Length"] = sum(packet[3] for packet in side)
            expected[f"{name} IAT Total"] = sum(between)
            expected[f"{name} IAT Std"] = deviation(between)
            expected[f"{name} PSH Flags"] = sum(packet[4] >> 3 & 1 for packet in side)
        for bit, name in enumerate(["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"]):
            expected[f"{name} Flag Count"] = sum(packet[4] >> bit & 1 for packet in packets)
        if forth[0][5]:
            expected["FWD Init Win Bytes"] = int(forth[0][5])
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-6), (found["Flow ID"], name)
    assert compared > 80
