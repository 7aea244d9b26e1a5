# SPDX-License-Identifier: Apache-2.0
"""The programs: `python -m dcpfs` is dcpfs, and the scripts dcpfs, dcpload and dcpsave of a wheel start here."""
import os
import pathlib
import sys
from collections.abc import Iterator

from ._lib import BUILDS, checkout


def places() -> Iterator[str]:
    """Places to look for the program, in the order in which libraries are looked for."""
    here = pathlib.Path(__file__).resolve().parent
    yield str(here / "bin/dcpfs")
    root = checkout(here)
    for builds in BUILDS if root else ():
        yield str(root / builds / "tools/dcpfs")
    yield from (os.path.join(folder, "dcpfs") for folder in os.get_exec_path() if folder)


def is_program(place: str) -> bool:
    """Is it a compiled program? A script of that name may have started this process."""
    try:
        with open(place, "rb") as f:
            return f.read(4) == b"\x7fELF" and os.access(place, os.X_OK)
    except OSError:
        return False


def main() -> None:
    """Become the program with this script's name."""
    tried = list(places())
    name = pathlib.Path(sys.argv[0]).name
    for place in tried:
        if is_program(place):
            os.execv(place, [name if name in ("dcpload", "dcpsave") else "dcpfs", *sys.argv[1:]])
    print("dcpfs: the program is not found; looked for " + ", ".join(tried), file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    main()
