#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Add up what meson's logs say of some builds; the last line is "N passed, N failed, N skipped".

usage: summary.py [--ci] TOP BUILD[=SUITE,...] ...

A build without a log counts as one failure, and so does each test that should have run and left
no result. With --ci a skip counts as a failure, but in suite gpu, or in suite mount where there
is no /dev/fuse.
"""
import json
import os
import pathlib
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
ASKED_FOR = {"stress", "frameworks"}         # run only when they are named: the setups of tests/meson.build


def expected(build, suites):
    """Every test meson knows of in these suites: {(name, command): suites}."""
    tests = {}
    for t in json.loads((build / "meson-info" / "intro-tests.json").read_text(encoding="utf-8")):
        of = {s.split(":")[-1] for s in t["suite"]}
        if of & suites or not suites and not of & ASKED_FOR:
            tests[t["name"], tuple(map(str, t["cmd"]))] = of
    return tests


def reason(result):
    """The last thing a test said."""
    said = [x.strip() for k in ("stderr", "stdout") for x in (result.get(k) or "").splitlines()[::-1] if x.strip()]
    return said[0] if said else "no reason given"


def may_skip(suites):
    return "gpu" in suites or ("mount" in suites and not os.path.exists("/dev/fuse"))


def judge(top, build, suites, strict):
    """(passed, failures, skips) of one build."""
    where = pathlib.Path(top) / build
    log = where / "meson-logs" / "testlog.json"
    if not log.is_file():
        return 0, [f"{build}: did not configure, compile or test"], []
    left, passed, failures, skips = expected(where, suites), 0, [], []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        r = json.loads(line)
        name = r["name"].split(" / ")[-1]  # "project:suite / name" where there are several suites
        key = next((k for k in left if k == (name, tuple(r["command"]))),
                   next((k for k in left if k[0] == name), None))
        of = left.pop(key, set()) if key else set()
        if r["result"] in PASSED:
            passed += 1
        elif r["result"] == "SKIP" and (not strict or may_skip(of)):
            skips.append(f"{build}: {name}: {reason(r)}")
        elif r["result"] == "SKIP":
            failures.append(f"{build}: {name}: skipped, which CI does not allow: {reason(r)}")
        else:
            failures.append(f"{build}: {name}: {r['result'].lower()}, see {log.with_suffix('.txt')}")
    failures += [f"{build}: {name}: left no result" for name, _ in left]
    return passed, failures, skips


def main(args):
    strict = args[:1] == ["--ci"]
    top, *builds = args[strict:]
    passed, failures, skips = 0, [], []
    for word in builds:
        build, _, suites = word.partition("=")
        p, f, s = judge(top, build, set(filter(None, suites.split(","))), strict)
        print(f"{build}: {p} passed, {len(f)} failed, {len(s)} skipped")
        passed, failures, skips = passed + p, failures + f, skips + s
    for title, lines in (("Skipped:", skips), ("Failed:", failures)):
        if lines:
            print("\n".join(["", title, *("  " + x for x in lines)]))
    print(f"\n{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    return 1 if failures or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
