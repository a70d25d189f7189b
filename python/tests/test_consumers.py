"""The libraries that docs/python.md names read the same flows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import steerage


def test_pyarrow(demo):
    import pyarrow as pa

    assert pa.table(steerage.meter(demo)).num_rows == 92


def test_polars(demo):
    import polars as pl

    frame = pl.DataFrame(steerage.meter(demo))
    assert frame.height == 92 and frame.schema["first"] == pl.Datetime("ns", "UTC")
    assert frame["packets"].sum() + frame["packets_back"].sum() == 1000


def test_pandas(demo):
    import pandas as pd

    if not hasattr(pd.DataFrame, "from_arrow"):
        pytest.skip("this pandas has no DataFrame.from_arrow")
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
    heavy = {"asyncio", "dataclasses", "inspect", "json", "multiprocessing", "numpy", "pandas", "polars", "pyarrow", "tqdm"}
    assert "steerage" in loaded and not loaded & heavy, sorted(loaded)


def test_the_wheel_depends_on_nothing():
    import importlib.metadata

    package = importlib.metadata.distribution("steerage")
    assert not package.requires
    assert any(str(path).endswith("py.typed") for path in package.files)
