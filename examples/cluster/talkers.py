#!/usr/bin/env python3
"""Asks DuckDB about the flows that pool.py, with_ray.py and with_spark.py write.

    pip install duckdb
    python3 examples/cluster/talkers.py flows/
"""

import sys

import duckdb

flows = f"'{sys.argv[1]}/*.parquet'"
query = f"""
    select source, count(*) as flows, sum(packets + packets_back) as packets, sum(bytes + bytes_back) as bytes
    from {flows} group by source order by bytes desc, source limit 5
"""
for source, count, packets, size in duckdb.sql(query).fetchall():
    print(f"{source}: {count} flows, {packets} packets, {size} bytes")
