# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package dcpfs share: the package, numpy, golden checkpoints and their manifests."""
import json
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
sys.path.insert(0, str(ROOT / "tools/python"))

try:
    import numpy as np
except ImportError as why:
    other = os.environ.get("DCPFS_TEST_PYTHON", "")
    if other and os.environ.get("DCPFS_TEST_REPLACED") != other:
        os.environ["DCPFS_TEST_REPLACED"] = other
        os.execvp(other, [other, *sys.argv])
    print(f"{why}; tests/run.sh makes a python that has it", file=sys.stderr)
    sys.exit(77)

_cache = tempfile.TemporaryDirectory(prefix="dcpfs-python-")
os.environ["DCPFS_CACHE"] = _cache.name
os.environ["DCPFS_TEST_REPLACED"] = ""

import dcpfs  # noqa: E402


def golden(folder):
    """(source, {version: its entry of the manifest}) of the complete versions."""
    with open(GOLDEN / folder / "manifest.json", encoding="utf-8") as f:
        versions = json.load(f)["versions"]
    return str(GOLDEN / folder / "ckpt"), {v["name"]: v for v in versions if v.get("complete", True)}


def main():
    program = unittest.main(module="__main__", exit=False)
    sys.exit(0 if program.result.wasSuccessful() and program.result.testsRun else 1)
