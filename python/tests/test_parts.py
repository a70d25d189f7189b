"""Parts of a recording that are metered apart and merged give the flows of the whole."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
import steerage
from frames import SECOND, START, connection, many, pcap, udp

#: What docs/cluster.md says is equal.
EQUAL = """first last kind protocol source source_port destination destination_port packets bytes ip_bytes packets_back bytes_back
ip_bytes_back tcp_flags tcp_flags_back vlan vlan_inner tunnel tunnel_id icmp_type icmp_code
dns_query dns_type dns_rcode dns_answer tls_sni tls_alpn http_host""".split()


def recording():
    """Connections and datagrams that begin and pause at different times, in the order of their packets."""
    packets = []
    for nth in range(30):
        request = b"GET / HTTP/1.1\r\nHost: %d.example\r\n\r\n" % nth
        packets += connection((f"10.0.0.{nth}", 40000), ("192.0.2.7", 443), START + nth * 7 * SECOND // 10, request)
    for nth in range(100):
        query = b"\0\1\1\0\0\1\0\0\0\0\0\0\3%03d\0\0\1\0\1" % nth if nth >= 10 else b""
        packets.append((START + nth * 3 * SECOND // 4, udp(("10.1.0.1", 500 + nth % 5), ("192.0.2.9", 53), query)))
    return sorted(packets)


def rows(*tables):
    tables = [pa.table(table).select(EQUAL).to_pylist() for table in tables]
    return sorted((tuple(row.values()) for table in tables for row in table), key=repr)


def cut(packets, cuts):
    ends = sorted(cuts)
    return [packets[begin:end] for begin, end in zip([0, *ends], [*ends, len(packets)])]


def metered(number, packets, **options):
    part = steerage.meter_part(pcap(packets), part=number, **options)
    return pa.table(part), part.edges


@pytest.mark.parametrize("seed", range(4))
def test_parts_in_any_order_and_tree_are_the_whole(seed):
    chance = random.Random(seed)
    packets = recording()
    active_timeout = chance.choice([None, 3, 7.5])
    parts = cut(packets, (chance.randrange(len(packets) + 1) for _ in range(chance.randrange(16))))
    numbers = list(range(len(parts)))
    chance.shuffle(numbers)
    tables, edges = [], []
    for number in numbers:
        table, edge = metered(number, parts[number], active_timeout=active_timeout, names=True)
        tables.append(table)
        edges.append(edge)
    while len(edges) > 1:
        group = [edges.pop(chance.randrange(len(edges))) for _ in range(chance.randint(2, min(4, len(edges))))]
        merged = steerage.merge(group)
        tables.append(merged)
        edges.append(merged.edges)
    end = steerage.merge(edges, finish=True)
    active = "clock" if active_timeout else "flow"
    whole = steerage.meter(pcap(packets), active=active, active_timeout=active_timeout, names=True)
    assert rows(*tables, end) == rows(whole)
    names = pa.table(whole)
    assert names["http_host"].null_count < names.num_rows > names["dns_query"].null_count
    assert end.parts == [(0, len(parts) - 1)] and (len(parts) == 1 or end.joined > 0)


def test_a_part_that_is_there_twice_or_missing():
    packets = many(10)
    edges = [metered(number, part)[1] for number, part in enumerate(cut(packets, [5, 9, 14]))]
    with pytest.raises(ValueError, match="part 1: merged twice"):
        steerage.merge([edges[0], edges[1], edges[1]])
    apart = steerage.merge([edges[0], edges[3]])
    assert apart.parts == [(0, 0), (3, 3)]
    with pytest.raises(ValueError, match="parts 1 to 2: missing"):
        steerage.merge([apart], finish=True)
    with pytest.raises(ValueError, match="merged twice"):
        steerage.merge([apart, edges[3]])
    whole = steerage.merge([apart, edges[2], edges[1]], finish=True)
    assert pa.table(whole).num_rows == 10 and whole.edges == b""
    # Each call makes a new stream.
    assert pa.table(whole).num_rows == 10
    assert pa.schema(whole) == pa.table(whole).schema


def test_what_are_no_edges():
    with pytest.raises(ValueError, match="these bytes are no edges"):
        steerage.merge([b"something else, which is long enough to be edges"])
    part = steerage.meter_part(pcap([]), part=0)
    with pytest.raises(ValueError, match="read them first"):
        part.edges
    assert pa.table(part).num_rows == 0
    assert pa.table(steerage.merge([part], finish=True)).num_rows == 0
    other = steerage.meter_part(pcap(many(1)), part=1, idle_timeout=5)
    pa.table(other)
    this = steerage.meter_part(pcap(many(1)), part=0)
    pa.table(this)
    with pytest.raises(ValueError, match="different timeouts"):
        steerage.merge([this, other])


def work(given):
    number, data = given
    part = steerage.meter_part(data, part=number)
    # pa.table would import pandas in each process.
    return pa.RecordBatchReader.from_stream(part).read_all().select(EQUAL), part.edges


def test_a_pool_of_processes():
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    packets = recording()
    parts = [pcap(part) for part in cut(packets, [50, 120, 200, 333])]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        done = list(pool.map(work, enumerate(parts)))
    end = steerage.merge((edges for _, edges in done), finish=True)
    assert rows(*(table for table, _ in done), end) == rows(steerage.meter(pcap(packets), active_timeout=None))


def edge_tables(cuts):
    packets = recording()
    parts = [steerage.meter_part(pcap(part), part=number) for number, part in enumerate(cut(packets, cuts))]
    tables = [pa.table(part) for part in parts]
    return packets, tables, parts


def test_edges_are_tables_that_libraries_copy():
    import polars as pl

    packets, tables, parts = edge_tables([100, 100, 250])
    [empty] = pa.table(parts[1].edge_table).to_pylist()
    assert (empty["part_first"], empty["part_last"], empty["packets"]) == (1, 1, None)
    first = pa.table(parts[0].edge_table).to_pylist()
    assert {row["goes_on"] for row in first} <= {0, 1} and all(row["begins_before"] == 1 for row in first)
    tcp = next(row for row in first if row["kind"] == "tcp" and row["packets_back"] > 1)
    assert tcp["source"].startswith("10.0.0.") and tcp["sequence"] >= 101 and tcp["acknowledged"] >= 901
    # All parts in one table, whose rows are in another order, with the types that each library has.
    together = pa.concat_tables(pa.table(part.edge_table) for part in parts)
    order = sorted(range(together.num_rows), key=lambda nth: nth * 7919 % together.num_rows)
    large = together.set_column(together.num_columns - 1, "state", together["state"].cast(pa.large_binary()))
    frame = pl.DataFrame(together)
    for table in (together.take(order), large.take(order), frame[order], frame.lazy().select("state").collect()):
        end = steerage.merge([table], finish=True)
        assert rows(*tables, end) == rows(steerage.meter(pcap(packets), active_timeout=None))
    # Parts of both kinds, and what was merged as a table.
    some = steerage.merge([parts[2].edge_table, parts[3].edges])
    end = steerage.merge([some.edge_table, parts[0], pl.DataFrame(parts[1].edge_table)], finish=True)
    assert rows(*tables, some, end) == rows(steerage.meter(pcap(packets), active_timeout=None))


def test_many_edges_have_several_batches():
    part = steerage.meter_part(pcap(many(40_000, 1)), part=0)
    assert pa.RecordBatchReader.from_stream(part).read_all().num_rows == 0
    table = pa.RecordBatchReader.from_stream(part.edge_table).read_all()
    end = pa.RecordBatchReader.from_stream(steerage.merge([part.edge_table], finish=True)).read_all()
    for whole in (table, end):
        assert whole.num_rows == 40_000
        assert max(batch.num_rows for batch in whole.to_batches()) <= 32_768


def test_tables_that_are_no_edges():
    _, _, parts = edge_tables([100])
    table = pa.table(parts[0].edge_table)
    assert table.num_rows > 2
    with pytest.raises(ValueError, match=r"part 0: 1 of \d+ rows of the edges are missing: give all rows"):
        steerage.merge([table.slice(1)])
    with pytest.raises(ValueError, match="part 0: merged twice"):
        steerage.merge([pa.concat_tables([table, table.slice(0, 1)])])
    with pytest.raises(ValueError, match="the table has no column `state`"):
        steerage.merge([table.drop_columns(["state"])])
    text = table.set_column(table.num_columns - 1, "state", pa.array(["x"] * table.num_rows))
    with pytest.raises(ValueError, match="the column `state` is not binary"):
        steerage.merge([text])
    with pytest.raises(TypeError, match="cannot merge int"):
        steerage.merge([7])


def test_what_parts_cannot_have():
    with pytest.raises(ValueError, match="parts can be merged only with active='clock'"):
        steerage.meter_part(pcap([]), part=0, active="flow", active_timeout=300)
    with pytest.raises(ValueError, match="active='hour': give 'flow' or 'clock'"):
        steerage.meter(pcap([]), active="hour")
    with pytest.raises(ValueError, match="active='clock' needs a time"):
        steerage.meter(pcap([]), active="clock", active_timeout=None)
    parts = [steerage.meter_part(pcap(many(1)), part=nth, active_timeout=timeout) for nth, timeout in enumerate([None, 60])]
    for part in parts:
        pa.table(part)
    with pytest.raises(ValueError, match="different timeouts"):
        steerage.merge(parts)


def test_a_column_says_how_many_flows_were_joined():
    packets = connection(("10.0.0.1", 40000), ("192.0.2.7", 443), START)
    other = (START + SECOND // 4, udp(("10.1.0.1", 500), ("192.0.2.9", 53)))
    columns = ["source", "packets", "joined"]
    edges = []
    for number, part in enumerate(cut(sorted([*packets, other]), [4, 7])):
        table, edge = metered(number, part, columns=columns)
        assert table.num_rows == 0
        edges.append(edge)
    last = steerage.merge(edges[1:], columns=columns)
    merged = steerage.merge([edges[0], last], columns=columns, finish=True)
    assert rows_of(merged) == [("10.0.0.1", 6, 2), ("10.1.0.1", 1, 0)]
    with pytest.raises(ValueError, match="no column `joint`"):
        steerage.merge(edges, columns=["joint"])


def rows_of(table):
    return sorted(tuple(row.values()) for row in pa.table(table).to_pylist())
