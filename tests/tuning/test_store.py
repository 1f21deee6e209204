"""The store: what it keeps of equal rows, several processes, damage, versions."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from convopt.errors import InputError
from convopt.schedules.conv_direct import DirectConv
from convopt.selection.conv_plan import ConvPlan
from convopt.targets.cpu import HASWELL
from convopt.tuning import exchange, identity, records
from convopt.tuning.identity import task_key
from convopt.tuning.store import Store, Trial
from tests.tuning.problems import conv

KEY = task_key(conv(), HASWELL, 2)


def plan(pixels: int = 4, **changes: int) -> ConvPlan:
    return ConvPlan(replace(DirectConv(pixels, 2, 16, True, 2, 3), **changes))


def test_a_record_comes_back(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        assert store.best(KEY) is None
        assert store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
    with Store(tmp_path / "s.sqlite3") as store:
        record = store.best(KEY)
    assert record is not None
    assert (record.plan, record.baseline, record.seconds, record.ratio) == (plan(), plan(2), 2e-3, 0.8)


def test_the_better_ratio_stays(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        assert store.add_record(KEY, plan(3), 2e-3, 0.8, plan(2))
        assert not store.add_record(KEY, plan(5), 1e-3, 0.9, plan(2))
        assert store.best(KEY).plan == plan(3)
        assert store.add_record(KEY, plan(6), 3e-3, 0.7, plan(2))
        assert store.best(KEY).plan == plan(6)


def test_another_convolution_chip_or_number_of_threads_has_no_record(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        others = [
            task_key(conv(stride=2), HASWELL, 2),
            task_key(conv(), replace(HASWELL, l3=1 << 20), 2),
            task_key(conv(), HASWELL, 1),
            replace(KEY, generator="another"),
        ]
        assert [store.best(key) for key in others] == [None] * 4


def test_other_batch_sizes_are_starting_points(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        assert store.kin(task_key(conv(n=4), HASWELL, 1)) == [plan()]
        assert store.kin(KEY) == []
        assert store.kin(task_key(conv(n=4, k=32), HASWELL, 2)) == []


def test_a_changed_schedule_leaves_its_records_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        store.add_trial(KEY, Trial(plan(), 2e-3))
        monkeypatch.setattr("convopt.tuning.store.schedule_version", lambda family: "new")
        assert store.best(KEY) is None
        assert store.trials(KEY) == []
        assert [r.version for r in store.records(KEY)] == [identity.schedule_version("direct")]
        # The new version's record stands beside the old one, whatever the old one's ratio.
        assert store.add_record(KEY, plan(5), 2e-3, 0.9, plan(2))
        assert store.best(KEY).plan == plan(5)


def test_trials_are_sorted_and_failures_last(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        store.add_trial(KEY, Trial(plan(1), None, "crashed"))
        store.add_trial(KEY, Trial(plan(2), 3e-3))
        store.add_trial(KEY, Trial(plan(3), 1e-3))
        store.add_trial(KEY, Trial(plan(2), 2e-3))  # a quicker run of the same counts
        store.add_trial(KEY, Trial(plan(2), 9e-3))
        assert store.trials(KEY) == [
            Trial(plan(3), 1e-3), Trial(plan(2), 2e-3), Trial(plan(1), None, "crashed")
        ]  # fmt: skip


def _write(path: Path, first: int) -> None:
    with Store(path) as store:
        for number in range(100):
            store.add_trial(KEY, Trial(plan(first + number), 1e-3))


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write, args=(path, 1 + 1000 * i)) for i in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    with Store(path) as store:
        assert len(store.trials(KEY)) == 200


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s.sqlite3"
    path.write_bytes(b"not a database" * 1000)
    with caplog.at_level(logging.WARNING), Store(path) as store:
        assert store.best(KEY) is None
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
    assert "is damaged" in caplog.text and "starting empty" in caplog.text
    (aside,) = tmp_path.glob("s.sqlite3.damaged-*")
    assert aside.read_bytes().startswith(b"not a database")
    with Store(path) as store:
        assert store.best(KEY) is not None


def test_a_damaged_page_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s.sqlite3"
    with Store(path) as store:
        for number in range(300):
            store.add_trial(KEY, Trial(plan(1 + number), 1e-3))
    data = bytearray(path.read_bytes())
    assert len(data) > 5 * 4096
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING), Store(path) as store:
        assert store.trials(KEY) == []
    assert "is damaged" in caplog.text


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InputError, match="newer convopt"):
        Store(path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be used"):
        Store(tmp_path / "file" / "s.sqlite3")


def test_export_and_import(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite3") as a, Store(tmp_path / "b.sqlite3") as b:
        a.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        a.add_trial(KEY, Trial(plan(), 2e-3))
        document = exchange.exported(a)
        assert exchange.import_rows(b, document) == {"trials": 1, "records": 1}
        assert exchange.exported(b) == document
        assert exchange.import_rows(b, document) == {"trials": 0, "records": 0}
        assert exchange.merge(a, tmp_path / "b.sqlite3") == {"trials": 0, "records": 0}
        assert exchange.faults(b) == []


@pytest.mark.parametrize("damage", [{"format": 2}, {"tasks": []}, {"records": [{"task": 1}]}])
def test_a_damaged_export_changes_nothing(tmp_path: Path, damage: dict[str, object]) -> None:
    with Store(tmp_path / "a.sqlite3") as a, Store(tmp_path / "b.sqlite3") as b:
        a.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        with pytest.raises(InputError, match="export"):
            exchange.import_rows(b, exchange.exported(a) | damage)
        assert exchange.exported(b)["records"] == []


def test_prune_removes_what_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        store.add_trial(replace(KEY, generator="old"), Trial(plan(), 1e-3))
        assert exchange.prune(store, None) == {"trials": 1, "records": 0}
        assert [entry.state for entry in exchange.listed(store)] == ["used"]
        assert exchange.prune(store, 0.0) == {"trials": 0, "records": 1}
        assert exchange.exported(store)["tasks"] == []


def test_faults_are_named(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        store.connection.execute("UPDATE records SET plan = '{'")
        store.connection.execute("DELETE FROM tasks")
        first, second = exchange.faults(store)
    assert "records row 1: plan is no JSON" in first
    assert second == "1 records of tasks that are gone"


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("records", {"ratio": "0.1"}),
        ("records", {"seconds": -1.0}),
        ("records", {"plan": "[]"}),
        ("trials", {"seconds": float("inf")}),
        ("trials", {"plan": "{"}),
        ("trials", {"plan": '{"family": "direct"}'}),
    ],
)
def test_rows_that_no_tuner_writes_are_not_imported(
    tmp_path: Path, table: str, change: dict[str, object]
) -> None:
    with Store(tmp_path / "a.sqlite3") as a, Store(tmp_path / "b.sqlite3") as b:
        a.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        a.add_trial(KEY, Trial(plan(), 2e-3))
        document = exchange.exported(a)
        document[table][0] |= change
        with pytest.raises(InputError, match="a damaged export"):
            exchange.import_rows(b, document)
        assert exchange.exported(b)["tasks"] == []


def test_merging_something_else_leaves_it_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("notes")
    with Store(tmp_path / "s.sqlite3") as store, pytest.raises(InputError, match="is no tuning store"):
        exchange.merge(store, other)
    assert other.read_text() == "notes"
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "s.sqlite3"}


def test_a_store_on_a_read_only_disk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite can't open it as usual there: that is made to fail, as permissions don't bind every user."""
    with Store(tmp_path / records.STORE_NAME) as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))

    def refuse(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr("convopt.tuning.store._connect", refuse)
    with records.open_records(tmp_path) as found:
        assert found is not None
        assert found.find(conv(), HASWELL, 2) == plan()
    assert caplog.text == ""
    (tmp_path / records.STORE_NAME).write_text("no store")
    with records.open_records(tmp_path) as found:
        assert found is None
    assert "can't be used: attempt to write a readonly database" in caplog.text


def test_a_folder_that_can_not_be_looked_into_has_no_records(tmp_path: Path) -> None:
    """A name that is too long is what every user is refused."""
    with records.open_records(tmp_path / ("x" * 300)) as found:
        assert found is None


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite3") as store:
        store.add_record(KEY, plan(), 2e-3, 0.8, plan(2))
        (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
        store.connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own full disk
        with pytest.raises(InputError, match=r"s\.sqlite3 can't be written: database or disk is full"):
            for number in range(2000):
                store.add_trial(KEY, Trial(plan(1 + number), 1e-3))
        store.connection.execute(f"PRAGMA max_page_count = {4 * pages}")
        store.add_trial(KEY, Trial(plan(5000), 1e-3))
        assert store.best(KEY) is not None
        assert exchange.faults(store) == []
