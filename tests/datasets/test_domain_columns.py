"""Domains from several columns and from time, and dates that cannot be read."""

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from shoal.datasets.domain_columns import UNITS, domain_names, read_date
from shoal.datasets.encoding import Encoding
from shoal.datasets.tables import encode_table, table_data

PATH = Path("t.csv")


def names(values: list[Any], unit: str) -> list[str]:
    return domain_names({"date": values}, f"date:{unit}", PATH)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("year", ["2023", "2024", "2024", "2024"]),
        ("quarter", ["2023-Q4", "2024-Q1", "2024-Q3", "2024-Q4"]),
        ("month", ["2023-12", "2024-01", "2024-09", "2024-12"]),
        # The last days of 2024 are in the first week of 2025.
        ("week", ["2023-W52", "2024-W01", "2024-W36", "2025-W01"]),
        ("day", ["2023-12-31", "2024-01-01", "2024-09-02", "2024-12-30"]),
    ],
)
def test_parts_of_time_have_names_that_sort_in_time(unit: str, expected: list[str]) -> None:
    days = ["2023-12-31", "2024-01-01", "2024-09-02", "2024-12-30"]
    assert names(days, unit) == expected == sorted(expected)


@pytest.mark.parametrize(
    "value",
    [
        "2024-03-31",
        " 2024-03-31 ",
        "20240331",
        20240331,
        20240331.0,
        "2024-03-31T23:59:59",
        "2024-03-31 17:45:01.5",
        "2024-03-31T23:30:00+02:00",  # its own day
        "2024-03-31T23:30:00Z",
        "2024-W13-7",
        date(2024, 3, 31),
        datetime(2024, 3, 31, 23, 30, tzinfo=timezone(timedelta(hours=-8))),
        *(int(datetime(2024, 3, 31, 23, 30, tzinfo=UTC).timestamp() * 10**k) for k in (0, 3, 6, 9)),
        str(int(datetime(2024, 3, 31, tzinfo=UTC).timestamp())),
        datetime(2024, 3, 31, 1, tzinfo=UTC).timestamp() + 0.25,
    ],
    ids=str,
)
def test_dates_timestamps_and_seconds_are_one_day(value: Any) -> None:
    assert names([value], "day") == ["2024-03-31"]


def test_a_year_or_a_month_is_enough_for_itself() -> None:
    assert names(["2024", 2023, 2022.0], "year") == ["2024", "2023", "2022"]
    assert names(["2024-03", "2024-11"], "month") == ["2024-03", "2024-11"]
    assert names(["2024-03", "2024-11"], "quarter") == ["2024-Q1", "2024-Q4"]
    assert names(["2024-03"], "year") == ["2024"]


@pytest.mark.parametrize(
    ("value", "unit", "why"),
    [
        ("03/04/2024", "month", "'03/04/2024' is not a date; day and month cannot be told apart"),
        ("3.4.2024", "month", "'3.4.2024' is not a date; day and month cannot be told apart"),
        ("yesterday", "year", "'yesterday' is not a date. Write it as 2024-03-31"),
        ("2024-13-01", "month", "'2024-13-01' is not a date"),
        ("2024-13", "month", "'2024-13' is not a date"),
        ("2024", "month", "'2024' is a year, and a month cannot be read from it"),
        ("2024-03", "week", "'2024-03' is a month, and a week cannot be read from it"),
        (12345, "month", "'12345' is not a date"),  # days of Excel, or seconds of 1970?
        (999_999_999, "day", "'999999999' is not a date"),
        ("2031053112", "day", "'2031053112' is not a date"),  # 31 May 2031, or seconds of 2034?
        (True, "day", "'True' is not a date"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_row(value: Any, unit: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        names(["2024-03-31" if unit != "year" else "2024", value], unit)
    assert str(caught.value).startswith(f"t.csv: column 'date', row 2: {why}")


def test_a_date_of_another_zone_is_read_as_it_is_written() -> None:
    assert read_date("2024-01-01T00:30:00+05:00", "day") == date(2024, 1, 1)


def test_several_columns_name_a_domain_together() -> None:
    table = {"site": ["a", "b", "a"], "scanner": [1.0, 2, "x"], "t": ["2024-05-01"] * 3}
    assert domain_names(table, ["site", "scanner"], PATH) == ["a / 1", "b / 2", "a / x"]
    assert domain_names(table, ["t:year", "site"], PATH) == ["2024 / a", "2024 / b", "2024 / a"]
    assert domain_names(table, "site", PATH) == domain_names(table, ["site"], PATH)
    with pytest.raises(ValueError, match="need a column, got none"):
        domain_names(table, [], PATH)


def write(path: Path) -> Path:
    lines = ["site,scanner,date,date:raw,x,class"]
    for k in range(48):
        when = f"2024-{k % 4 + 1:02}-15"
        lines.append(
            f"{'ab'[k % 2]},{'st'[k // 2 % 2]},{when},r{k % 3},{k * k % 31},{'yn'[k % 3 % 2]}"
        )
    path.write_text("\n".join(lines))
    return path


def test_a_table_is_cut_by_them_and_the_model_does_not_see_them(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    found = table_data("t", path, domain_column=["site", "scanner"])
    assert found.dataset.names == ("a / s", "a / t", "b / s", "b / t")
    assert [one.name for one in found.encoding.columns] == ["date", "date:raw", "x"]
    assert found.answers == ("class", ["site", "scanner"])
    months = table_data("t", path, domain_column="date:month")
    assert months.dataset.names == ("2024-01", "2024-02", "2024-03", "2024-04")
    assert [one.name for one in months.encoding.columns] == ["site", "scanner", "date:raw", "x"]
    assert months.answers == ("class", "date:month")
    # A column that has a colon in its name is itself.
    assert table_data("t", path, domain_column="date:raw").dataset.names == ("r0", "r1", "r2")


def test_asked_for_it_sees_them(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    found = table_data("t", path, domain_column=["site", "scanner"], keep=["scanner"])
    assert [one.name for one in found.encoding.columns] == ["scanner", "date", "date:raw", "x"]
    assert found.dataset.names == ("a / s", "a / t", "b / s", "b / t")
    with pytest.raises(ValueError, match="--keep is for columns of --domain-column, and 'x' is no"):
        table_data("t", path, domain_column=["site", "scanner"], keep=["x"])
    with pytest.raises(ValueError, match=r"unknown column of .* 'scaner'; did you mean 'scanner'"):
        table_data("t", path, domain_column=["site", "scanner"], keep=["scaner"])


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("date:moth", "unknown unit of time 'moth'; did you mean 'month'"),
        ("dat:month", r"unknown column of .* 'dat'; did you mean 'date'.*--domain-column names it"),
        ("sites", "unknown column of .* 'sites'; did you mean 'site'"),
    ],
)
def test_names_that_are_not_there(tmp_path: Path, column: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        table_data("t", write(tmp_path / "t.csv"), domain_column=["site", column])


def test_another_table_is_cut_in_the_same_way(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    found = table_data("t", path, domain_column=["date:quarter", "site"])
    encoding = Encoding.from_json(found.encoding.as_json())
    again, unseen = encode_table(path, encoding, *found.answers)
    assert again.names == found.dataset.names == ("2024-Q1 / a", "2024-Q1 / b", "2024-Q2 / b")
    assert not unseen


def test_every_unit_is_documented() -> None:
    help_text = (Path(__file__).parents[2] / "src/shoal/cli/fit.py").read_text()
    assert all(f":{unit}" in help_text for unit in UNITS)
