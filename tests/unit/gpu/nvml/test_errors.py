"""Versions of the loaded driver and of its library, from the system's files."""

from pathlib import Path

from commonage.gpu.nvml.errors import library_version, loaded_version, versions_in_words

LOADED = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder@U16)
GCC version:  gcc version 12.3.0
"""
MAPPED = "7f00-7f01 r-xp 00000000 08:01 131 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.10\n"


def test_both_are_named(tmp_path: Path) -> None:
    (tmp_path / "version").write_text(LOADED)
    (tmp_path / "maps").write_text(MAPPED)
    assert loaded_version(tmp_path / "version") == "550.54.14"
    assert library_version(tmp_path / "maps") == "570.86.10"
    assert versions_in_words(tmp_path / "version", tmp_path / "maps") == " (550.54.14, the library is of 570.86.10)"


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text(MAPPED)
    assert versions_in_words(tmp_path / "none", tmp_path / "maps") == " (the library is of 570.86.10)"
    assert versions_in_words(tmp_path / "none", tmp_path / "none") == ""
