"""Builds the stand-in of HAMi-core's libvgpu.so, and libraries in its place that do not limit anything."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("vgpu.c")
_MACHINE = 18  # where an ELF file says for which processor it is
_COMPILE = ("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")


def build_interposer(folder: Path) -> Path:
    return _build(folder / "libvgpu.so", str(SOURCE), "-ldl")


def build_idle_one(folder: Path) -> Path:
    """One that can be loaded and does nothing."""
    return _build(folder / "libidle.so", "-xc", "/dev/null")


def build_one_that_cannot_be_loaded(folder: Path) -> Path:
    """One that needs a library that is nowhere, as one of a newer system may."""
    needed = _build(folder / "libof-a-newer-system.so", "-xc", "/dev/null")
    library = _build(folder / "libnewer.so", "-Wl,--no-as-needed", str(needed), "-xc", "/dev/null")
    needed.unlink()
    return library


def build_one_of_another_processor(folder: Path) -> Path:
    """A library that the loader skips, as it does in an image for another processor or with another C library."""
    library = build_idle_one(folder).rename(folder / "libother.so")
    content = bytearray(library.read_bytes())
    content[_MACHINE] ^= 0xFF
    library.write_bytes(content)
    return library


def _build(library: Path, *words: str) -> Path:
    folder_name = f"-Wl,-soname,{library.name}"
    subprocess.run([*_COMPILE, folder_name, "-o", str(library), *words], check=True)
    return library
