"""The libraries that docs/python.md names read the same flows."""

from __future__ import annotations

import os
import subprocess
import sys

import steerage
from conftest import need


def test_pyarrow(demo):
    import pyarrow as pa

    flows = steerage.meter(demo)
    assert pa.table(flows).num_rows == 92
    assert sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(flows)) == 92
    assert pa.table(flows).to_pandas()["packets"].sum() > 500


def test_statistics_and_edges(demo):
    """Numbers with a fraction, and bytes."""
    import polars as pl
    import pyarrow as pa

    flows = steerage.meter(demo, features="cic", cpus=1)  # Each stream has the same order.
    assert pa.table(flows)["Flow IAT Mean"].to_pylist() == pl.DataFrame(flows)["Flow IAT Mean"].to_list()
    part = steerage.meter_part(demo, part=0)
    finished = pa.table(part).num_rows
    for table in (pa.table(part.edge_table), pl.DataFrame(part.edge_table)):
        assert finished + pa.table(steerage.merge([table], finish=True)).num_rows == 92


def test_polars(demo):
    import polars as pl

    frame = pl.DataFrame(steerage.meter(demo))
    assert frame.height == 92 and frame.schema["first"] == pl.Datetime("ns", "UTC")
    assert frame["packets"].sum() + frame["packets_back"].sum() == 1000


def test_pandas(demo):
    import pandas as pd

    need(hasattr(pd.DataFrame, "from_arrow"), "DataFrame.from_arrow of pandas 3")
    frame = pd.DataFrame.from_arrow(steerage.meter(demo))
    assert len(frame) == 92 and frame["bytes"].sum() + frame["bytes_back"].sum() == 479_907


def test_duckdb_scans_twice(demo):
    import duckdb

    flows = steerage.meter(demo)
    for _ in range(2):
        [(count, packets)] = duckdb.sql("select count(*), sum(packets + packets_back) from flows").fetchall()
        assert (count, packets) == (92, 1000)


def test_duckdb_reads_a_python_source(demo):
    """DuckDB's threads wait for a thread that needs the interpreter's lock."""
    import duckdb

    with open(demo, "rb") as file:
        flows = steerage.meter(file)
        assert duckdb.sql("select count(*) from flows").fetchall() == [(92,)]


def test_polars_reads_a_python_source(demo):
    import polars as pl

    with open(demo, "rb") as file:
        assert pl.DataFrame(steerage.meter(file)).height == 92


def test_import_loads_little():
    """No module that is slow to import, so that the import of the package takes a few milliseconds."""
    path = os.path.dirname(os.path.dirname(steerage.__file__))
    script = f"import sys; sys.path.append({path!r}); import steerage; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in ended.stdout.split() if not name.startswith("_")}
    heavy = {"asyncio", "dataclasses", "inspect", "json", "multiprocessing", "numpy", "pandas", "polars", "pyarrow", "re", "tqdm", "typing"}
    assert "steerage" in loaded and not loaded & heavy, sorted(loaded)
