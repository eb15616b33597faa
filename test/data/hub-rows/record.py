"""Rows as datasets of the Hub have them, by pyarrow: conversations with calls of tools as nested lists and structs, with null where a row has no
value. Two shards, the second with gzip. Run: python record.py (pyarrow of the environment that python/verifiers-v0-requirements.txt installs)."""

import pyarrow as pa
import pyarrow.parquet as pq

call = pa.struct([("type", pa.string()), ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())]))])
message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))])
schema = pa.schema([("messages", pa.list_(message)), ("id", pa.int64()), ("score", pa.float64())])


def said(role, content, calls=None):
    return {"role": role, "content": content, "tool_calls": calls}


def row(word, number):
    messages = [said("user", word), said("assistant", word[::-1])]
    return {"messages": messages, "id": number, "score": None if number % 2 else 0.5}


calls = [{"type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}]
tools = [said("user", "2 and 3"), said("assistant", None, calls), said("tool", "5"), said("assistant", "It is 5")]
shards = [
    [row("cat", 0), row("dog", 1)],
    [row("sun", 2**60), {"messages": tools, "id": 3, "score": 1.0}],
]
for index, (rows, codec) in enumerate(zip(shards, ["snappy", "gzip"])):
    pq.write_table(pa.Table.from_pylist(rows, schema), f"train-0000{index}-of-00002.parquet", compression=codec)
pq.write_table(pa.Table.from_pylist([row("owl", 9)], schema), "test-00000-of-00001.parquet")
print("pyarrow", pa.__version__)
