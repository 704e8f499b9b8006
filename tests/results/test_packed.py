"""Packed records are the records that JSON has, number for number."""

import json
import math
from typing import Any

import pytest

from shoal.results.packed import pack

RECORD = {"step": 0, "terms": {"loss": 0.25}, "accuracy": {"a": {"kept": 1, "held_out": 0.5}}}


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in records).encode()


@pytest.mark.parametrize(
    "records",
    [
        [RECORD, RECORD | {"step": 300}],
        [RECORD, RECORD | {"average": "sma", "updates": [98, 300], "more": {}}],
        [{"a": 0, "b": False}, {"a": False, "b": 0}],  # 0 == False
        [{"a": 1.5, "b": 2.5}, {"b": 3.5, "a": 4.5}],  # equal as dicts, but for their numbers
        [{"a": [0.1, [1, True, "0.5", ""]], "0.25": -0.0, "b": -(10**13)}],
        [{"a": math.inf, "b": -math.inf, "c": 1e-320, "d": 1e300}],
    ],
)
def test_every_record_comes_back_with_its_types_and_order(records: list[Any]) -> None:
    found = pack(lines(*records))
    assert found is not None and len(found) == len(records)
    assert list(map(json.dumps, found)) == list(map(json.dumps, records))
    assert json.dumps(found[-1:][0]) == json.dumps(records[-1])


def test_not_a_number_is_packed() -> None:
    found = pack(b'{"step": 1, "loss": NaN}')
    assert found is not None and math.isnan(found[0]["loss"])
    assert math.isnan(found.column("loss")[0]) and math.isnan(found.column("other")[0])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b'{"a": 1.5',
        b'{"a": null}',  # would come back as a number
        b'{"a": 1.5, "a": 2.5}',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a": 1234567890123456}',
        b'{"a": ' + b"1" * 5000 + b"}",
    ],
)
def test_what_cannot_be_packed_exactly_is_not_packed(content: bytes) -> None:
    assert pack(content) is None


def test_files_that_look_alike_share_a_shape() -> None:
    one, other = pack(lines(RECORD, RECORD)), pack(lines(RECORD, RECORD))
    assert one is not None and other is not None and one.shape is other.shape
    assert one.shape is not pack(lines(RECORD)).shape  # type: ignore[union-attr]
