"""Reads an export with the library that is made for it, and prints what it found as JSON for the test to compare.

    read.py csv|parquet|otlp|speedscope|svg FILE [SCHEMA]
    read.py csv_columns|parquet_columns FILE COLUMN...
"""
import json
import sys


def table_sums(rows):
    sums = {}
    for function, calls, base, cum, recursion in rows:
        row = sums.setdefault(function, [0, 0, 0])
        row[0] += calls
        row[1] += base
        row[2] += cum if recursion == 0 else 0
    return sums


def read_csv(path):
    import csv

    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted = ("calls", "self_ns", "total_ns", "recursion")
    return table_sums((row["function"], *(int(row[name]) for name in wanted)) for row in rows)


def read_parquet(path):
    import duckdb

    rows = duckdb.sql(
        f"select function, calls, self_ns, total_ns, recursion from '{path}'"
    ).fetchall()
    # The query that a user would write, and a column in which every kind of cell occurs.
    duckdb.sql(
        f"select module, sum(self_ns) from '{path}' where parent is not null and not open group by module"
    ).fetchall()
    return table_sums(rows)


def column_sums(rows):
    sums = {}
    for function, *values in rows:
        row = sums.setdefault(function, [0] * len(values))
        for index, value in enumerate(values):
            row[index] += value
    return sums


def read_csv_columns(path, *names):
    import csv

    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return column_sums((row["function"], *(int(row[name]) for name in names)) for row in rows)


def read_parquet_columns(path, *names):
    import duckdb

    return column_sums(duckdb.sql(f"select function, {', '.join(names)} from '{path}'").fetchall())


def read_otlp(path):
    from opentelemetry.proto.profiles.v1development import profiles_pb2

    data = profiles_pb2.ProfilesData()
    with open(path, "rb") as file:
        data.ParseFromString(file.read())
    tables = data.dictionary
    for name in ("mapping", "location", "function", "link", "string", "attribute", "stack"):
        first = getattr(tables, name + "_table")[0]
        assert first == type(first)(), f"{name}_table does not begin with its empty element"
    strings = tables.string_table
    found = {}
    for resource in data.resource_profiles:
        keys = {pair.key: pair.value for pair in resource.resource.attributes}
        assert keys["process.pid"].int_value > 0
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                kind = strings[profile.sample_type.type_strindex]
                for sample in profile.samples:
                    assert len(sample.values) == 1 and not sample.timestamps_unix_nano
                    for index in sample.attribute_indices:
                        assert strings[tables.attribute_table[index].key_strindex].startswith("thread.")
                    stack = tables.stack_table[sample.stack_index]
                    line = tables.location_table[stack.location_indices[0]].lines[0]
                    function = tables.function_table[line.function_index]
                    key = strings[function.name_strindex] + " " + kind
                    found[key] = found.get(key, 0) + sample.values[0]
    return found


def read_speedscope(path, schema):
    import jsonschema

    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    with open(schema, encoding="utf-8") as file:
        jsonschema.validate(document, json.load(file))
    frames = document["shared"]["frames"]
    own = {}
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"]
        for stack, weight in zip(profile["samples"], profile["weights"]):
            name = frames[stack[-1]]["name"]
            own[name] = own.get(name, 0) + weight
    return own


def read_svg(path):
    import xml.etree.ElementTree as tree

    root = tree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    return [text.text for text in root.iter(space + "text")]


print(json.dumps(globals()["read_" + sys.argv[1]](*sys.argv[2:])))
