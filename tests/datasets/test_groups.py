"""Groups: nobody is in two splits, in any domain; shares; identities without groups stay."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal.datasets import Domain, DomainDataset, image_manifest, splits
from shoal.datasets.cache import cache_folder
from shoal.datasets.groups import Groups
from shoal.datasets.tables import table_data
from tests.datasets.pictures import picture


def grouped(domains: dict[str, list[str]]) -> DomainDataset:
    """Return a data set with an example for each name of a group."""
    made = tuple(
        Domain(name, torch.zeros(len(given), dtype=torch.int64), torch.zeros(len(given), 1))
        for name, given in domains.items()
    )
    return DomainDataset("d", ("all",), made, groups=Groups.of("patient", domains))


def people(dataset: DomainDataset, trial: int, holdout: float = 0.2) -> tuple[set[int], set[int]]:
    """Return the groups with a kept and those with a held-out example, over all domains."""
    kept, held_out = set[int](), set[int]()
    assert dataset.groups is not None
    for name, split in splits(dataset, trial, holdout).items():
        assert torch.cat(split).sort().values.tolist() == list(range(len(dataset[name])))
        kept.update(dataset.groups.ids[name][split.kept].tolist())
        held_out.update(dataset.groups.ids[name][split.held_out].tolist())
    return kept, held_out


# Own groups of several sizes, some shared by all domains, some by two.
MIXED = {
    "a": [f"a{k // 3}" for k in range(90)] + [f"all{k // 2}" for k in range(20)],
    "b": [f"b{k // 5}" for k in range(100)] + [f"all{k}" for k in range(10)],
    "c": [f"c{k}" for k in range(40)] + [f"all{k}" for k in range(10)] + ["a0", "a1"],
}


@pytest.mark.parametrize("trial", range(6))
def test_nobody_is_in_two_splits_of_any_domain(trial: int) -> None:
    dataset = grouped(MIXED)
    kept, held_out = people(dataset, trial)
    assert not kept & held_out
    for name, split in splits(dataset, trial).items():
        share = len(split.held_out) / len(dataset[name])
        assert 0.15 <= share <= 0.25, (name, share)


def test_groups_of_one_are_a_split_of_examples() -> None:
    dataset = grouped({"a": [str(k) for k in range(53)], "b": ["x", "y", "z", "u", "v"]})
    parts = splits(dataset, 0)
    assert [len(part.held_out) for part in parts.values()] == [10, 1]


def test_a_domain_of_two_groups_has_none_held_out_and_one_of_three_has() -> None:
    dataset = grouped({"a": ["p"] * 50 + ["q"] * 50, "b": [f"r{k % 3}" for k in range(99)]})
    parts = splits(dataset, 0)
    assert len(parts["a"].held_out) == 0
    assert len(parts["b"].held_out) == 33
    assert len(splits(dataset, 0, holdout=0.0)["b"].held_out) == 0


def test_a_domain_keeps_an_example_also_if_its_only_group_is_elsewhere() -> None:
    """Eight domains would come nearer to their share if it was held out."""
    others = {f"b{d}": ["p", "p", *(f"q{d}{k}" for k in range(8))] for d in range(8)}
    for trial in range(10):
        assert len(splits(grouped({"a": ["p"], **others}), trial)["a"].kept) == 1


def test_a_split_depends_on_trial_and_groups_and_not_on_the_test_domains() -> None:
    dataset = grouped(MIXED)
    first = splits(dataset, 0)
    again = splits(grouped(MIXED).without(["b"]), 0)
    assert list(again) == ["a", "c"]
    for name, split in again.items():
        assert torch.equal(split.held_out, first[name].held_out)
        assert torch.equal(split.kept, first[name].kept)
    assert not torch.equal(splits(dataset, 1)["a"].held_out, first["a"].held_out)
    renamed = grouped({**MIXED, "a": [f"z{name}" for name in MIXED["a"]]})
    assert not torch.equal(splits(renamed, 0)["a"].held_out, first["a"].held_out)
    # In random order, because samples are the first of them.
    assert first["a"].kept.tolist() != sorted(first["a"].kept.tolist())


def test_groups_are_part_of_the_fingerprint_only_where_there_are_any(tmp_path: Path) -> None:
    dataset = grouped(MIXED)
    plain = replace(dataset, groups=None)
    made = DomainDataset("d", ("all",), dataset.domains)
    assert plain.fingerprint == made.fingerprint != dataset.fingerprint
    other = grouped({**MIXED, "c": MIXED["c"][::-1]})
    assert len({one.fingerprint for one in (dataset, other, plain)}) == 3
    # Of images, the pixels are the same.
    assert cache_folder(dataset, tmp_path) == cache_folder(plain, tmp_path)


def test_shared_groups_are_named_with_their_domains() -> None:
    groups = grouped({"a": ["p", "q"], "b": ["q", "r"], "c": ["q", "r", "s"]}).groups
    assert groups is not None
    assert groups.shared() == {"q": ("a", "b", "c"), "r": ("b", "c")}
    taken = groups.take({"a": [0], "b": [1], "c": [2]})
    assert taken.shared() == {}
    assert taken.ids["c"].tolist() == [groups.names.index("s")]


def test_every_example_needs_a_group() -> None:
    dataset = grouped({"a": ["p", "q"], "b": ["q"]})
    with pytest.raises(ValueError, match="'b' must have one group per example, got 2 for 1"):
        replace(dataset, groups=Groups.of("patient", {"a": ["p", "q"], "b": ["p", "q"]}))
    with pytest.raises(ValueError, match="'b' must have one group per example, got 0 for 1"):
        replace(dataset, groups=Groups.of("patient", {"a": ["p", "q"]}))


def test_a_column_of_a_table_groups_its_rows_and_is_no_feature(tmp_path: Path) -> None:
    rows = [f"{'ab'[k % 2]},{k * k % 17},p{k // 4},{'yn'[k // 2 % 2]}" for k in range(40)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["domain,x,patient,class", *rows]))
    found = table_data("t", path, group_column="patient")
    assert [column.name for column in found.encoding.columns] == ["x"]
    groups = found.dataset.groups
    assert groups is not None and groups.column == "patient"
    assert [groups.names[k] for k in groups.ids["b"].tolist()] == [
        f"p{(row - 1) // 4}" for row in found.rows["b"]
    ]
    assert not set.intersection(*people(found.dataset, 0))
    assert table_data("t", path, leave_out=["patient"]).dataset.groups is None
    with pytest.raises(ValueError, match=r"'pateint'; did you mean 'patient'.*--group-column nam"):
        table_data("t", path, group_column="pateint")
    path.write_text("\n".join(["domain,x,patient,class", *rows, "a,1,,y"]))
    with pytest.raises(ValueError, match="row 41 has no patient; fill it in"):
        table_data("t", path, group_column="patient")


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_column_of_a_manifest_groups_its_images(tmp_path: Path, suffix: str) -> None:
    import json

    rows = []
    for k in range(12):
        path = picture(tmp_path / f"{(7 * k) % 12:02}.png", (k, 0, 0))
        rows.append((path.name, "xy"[k % 2], "ab"[k // 6], f"p{k // 3}"))
    names = ("path", "class", "domain", "patient")
    manifest = tmp_path / f"m.{suffix}"
    lines = "\n".join([",".join(names), *map(",".join, rows)])
    entries = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    manifest.write_text(lines if suffix == "csv" else entries)
    found = image_manifest("m", manifest, "patient")
    assert found.groups is not None
    owner = {row[0]: row[3] for row in rows}
    for domain in found.domains:
        ids = found.groups.ids[domain.name].tolist()
        assert [found.groups.names[k] for k in ids] == [owner[path.name] for path in domain.files]
    assert image_manifest("m", manifest).groups is None
    with pytest.raises(ValueError, match=r"m\.\w+: unknown column of the list 'animal'"):
        image_manifest("m", manifest, "animal")
    manifest.write_text(manifest.read_text().replace("p3", " "))
    with pytest.raises(ValueError, match=r"line \d+ has no patient; fill it in"):
        image_manifest("m", manifest, "patient")
