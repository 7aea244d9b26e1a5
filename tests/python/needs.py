# SPDX-License-Identifier: Apache-2.0
"""Running a proof with a python that has the frameworks it needs."""
import importlib
import os
import sys


def modules(variable, *names):
    """Import them all; if this python lacks one, become the python that the environment's @variable names, else skip."""
    try:
        for name in names:
            importlib.import_module(name)
    except ImportError as why:
        other = os.environ.pop(variable, "")
        if other:
            os.execv(other, [other, "-B", *sys.argv])
        print(f"{why}; tests/run.sh --frameworks makes a python that has it", file=sys.stderr)
        sys.exit(77)
