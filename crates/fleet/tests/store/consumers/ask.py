"""Asks a store through another engine: ask.py ENGINE STORE QUESTION... prints a list of the rows of each, as CSV."""

import json
import sys


def duckdb(store, sql):
    import duckdb

    return duckdb.sql(named(sql, lambda table: f"read_parquet('{store}/{table}/*/*/*{'' if table == 'contexts' else '/*'}.parquet', hive_partitioning = true)")).fetchall()


def chdb(store, sql):
    import chdb

    depth = {"figures": "*/*/*/*", "contexts": "*/*/*"}
    text = named(sql, lambda table: f"file('{store}/{table}/{depth[table]}.parquet', 'Parquet')")
    settings = " settings use_hive_partitioning = 1"
    answer = chdb.query(text + settings, "JSONCompact")
    return json.loads(answer.bytes())["data"]


def datafusion(store, sql):
    from datafusion import SessionContext

    context = SessionContext()
    for table, partitions in (("figures", ["service", "date", "host"]), ("contexts", ["service", "release"])):
        columns = ", ".join(partitions)
        context.sql(f"create external table {table} stored as parquet partitioned by ({columns}) location '{store}/{table}/'")
    rows = context.sql(named(sql, lambda table: table)).to_pylist()
    return [list(row.values()) for row in rows]


def named(sql, name):
    for table in ("figures", "contexts"):
        sql = sql.replace("{" + table + "}", name(table))
    return sql


def line(row):
    cells = [str(int(cell)) if not isinstance(cell, str) else cell for cell in row]
    return ",".join('"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\n') else cell for cell in cells)


engine, store, *questions = sys.argv[1:]
ask = {"duckdb": duckdb, "chdb": chdb, "datafusion": datafusion}[engine]
print(json.dumps([[line(row) for row in ask(store, sql)] for sql in questions]))
