"""How many processors a process may use: never more than its container may."""

from __future__ import annotations

from pathlib import Path

import pytest

from overhand import processors as machine
from overhand.processors import processors

GROUPS = {
    "nothing": ({}, "0::/", 8),
    "no quota": ({"cpu.max": "max 100000"}, "0::/", 8),
    "two": ({"cpu.max": "200000 100000"}, "0::/", 2),
    "a half": ({"cpu.max": "50000 100000"}, "0::/", 1),
    "above": ({"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, "0::/a/b", 3),
    "more than there are": ({"cpu.max": "6400000 100000"}, "0::/", 8),
    "version 1": (
        {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "50000"},
        "5:memory:/\n4:cpu,cpuacct:/docker/x\n0::/",
        3,
    ),
    "version 1, no quota": (
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "50000"},
        "4:cpu,cpuacct:/",
        8,
    ),
    "nonsense": ({"cpu.max": "many"}, "0::/", 8),
}


@pytest.mark.parametrize("name", GROUPS)
def test_no_more_processors_than_a_container_may_use(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, own, expected = GROUPS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert processors() == expected
