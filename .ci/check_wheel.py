"""Compares the files in a wheel with the package's files under version control: `python .ci/check_wheel.py WHEEL`."""

import subprocess
import sys
import zipfile

PLACES = ["__init__.py", "__main__.py", "errors.py", "py.typed", "frontend", "grammar", "kernels", "runtime"]


def main(wheel: str) -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "--", *PLACES], capture_output=True, text=True, check=True).stdout
    expected = {f"drawloom/{path}" for path in listed.split("\0") if path}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    if found != expected:
        sys.exit(f"missing from the wheel: {sorted(expected - found)}; not expected in it: {sorted(found - expected)}")
    print(f"{len(found)} files, as listed")


if __name__ == "__main__":
    main(*sys.argv[1:])
