"""Tiny wheels, made by hand."""

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, files: dict[str, str] | None = None, requires: tuple[str, ...] = ()
) -> Path:
    """A wheel for any Python in `folder`, with these files by their paths, `*.data/scripts` included."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    every = {
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in every.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{inside},sha256={digest},{len(text.encode())}\n"
            entry = zipfile.ZipInfo(inside)  # with a fixed date: the same wheel each time
            entry.external_attr = (0o100755 if ".data/scripts/" in inside else 0o100644) << 16
            archive.writestr(entry, text)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), f"{record}{info}/RECORD,,\n")
    return path
