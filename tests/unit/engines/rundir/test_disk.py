"""What a node says of its disk."""

from pathlib import Path

from commonage.engines.rundir.disk import free_on, tight_disk


def test_the_fullest_counts(tmp_path: Path) -> None:
    free, wrong = free_on(tmp_path, Path("/proc"))
    assert (free, wrong) == (0, ())


def test_a_folder_that_is_away_is_a_fault_and_not_the_end(tmp_path: Path) -> None:
    away = tmp_path / "share"
    assert free_on(tmp_path, away) == (None, (f"the folder {away} cannot be read: No such file or directory",))


def test_it_is_tight_below_what_is_needed() -> None:
    assert tight_disk(99, 100, "the disk").startswith("only 99 MiB are free on the disk")
    assert (tight_disk(100, 100, "the disk"), tight_disk(None, 100, "the disk")) == ("", "")
