# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus reads them: by its own client, where a python has that, in the strict form and in the older one."""
import json
import os
import re
import subprocess
import sys

PARSE = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
from prometheus_client.parser import text_string_to_metric_families as older
text = sys.stdin.read()
assert list(older(text))
whole = text if text.endswith("# EOF\\n") else text + "# EOF\\n"  # a file for the node exporter has no end
print(json.dumps([[f.name, f.type, f.unit, [[s.name, s.labels, s.value] for s in f.samples]] for f in strict(whole)]))
"""


def parsed(text):
    """{(sample, labels): value}; without the client, by the grammar of the lines alone. ValueError says what is wrong."""
    # Go's form of the older parser, which the node exporter has, knows no other types.
    kinds = set(re.findall(r"^# TYPE \w+ (\w+)$", text, re.M)) - {"counter", "gauge", "histogram"}
    if kinds:
        raise ValueError(f"types that the node exporter refuses: {kinds}")
    python = os.environ.get("DCPFS_TEST_PYTHON") or sys.executable
    done = subprocess.run([python, "-c", PARSE], input=text, capture_output=True, text=True)
    if done.returncode and "No module named" in done.stderr:
        lines = [x for x in text.splitlines() if not x.startswith("#")]
        found = [re.fullmatch(r'(dcp\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)+)\})? ([0-9.e+-]+)', x) for x in lines]
        if not all(found):
            raise ValueError(f"lines: {[x for x, m in zip(lines, found) if not m]}")
        return {(m[1], tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m[2] or ""))): float(m[3]) for m in found}
    if done.returncode:
        raise ValueError(f"the parser: {done.stderr}")
    families = json.loads(done.stdout)
    for name, _, unit, samples in families:
        if unit and not name.endswith("_" + unit) or not samples:
            raise ValueError(f"{name}: unit {unit}, samples {samples}")
    return {(name, tuple(labels.items())): value for *_, samples in families for name, labels, value in samples}
