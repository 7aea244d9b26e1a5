#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plant the faults of tests/mutants.txt, one at a time, and see which of them no test notices.

The faults go into a copy of the tree (build/mutants/tree), built there; the checkout stays as it is. For each the
related tests run first (unit tests that cover the source, as lint/units.py knows, or a source that includes the header,
then the others of their rooms; of fs/ suite mount, of tools/ the scripts that call its command or are about it, of
tools/python suite python, before it those of suite frameworks for which DCPFS_TEST_TORCH and the like are set), then all others; those that saw most faults of the folder go first, and
the first that fails, and passes without the fault, ends it.
What is known stays in build/mutants/results.json: a run that was stopped goes on where it was, and a fault is tried again
when its source has changed, or when it survived unexplained and anything has.

usage: mutate.py [WORD..] [--changed N] [--related] [-j N] [--fresh] [--list] [--check]
"""
import argparse
import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/lint"))
import tree  # noqa: E402
import units  # noqa: E402

WORK = ROOT / "build/mutants"
TREE, BUILD, RESULTS = WORK / "tree", WORK / "build", WORK / "results.json"
SUITES = ("unit", "cli", "mount", "fuzz", "load", "python", "frameworks")
SCRIPTS = ("cli", "mount", "load")
BUILT_ON = {"save": ("export",), "export": ("save",), "loading": ("load",)}  # commands that work by what is in a folder of another


class Fault:
    """One entry of the list: a file, the text that is there, the text that takes its place."""

    def __init__(self, name, old, new, why):
        self.name, self.old, self.new, self.why = name, " ".join(old.split()), " ".join(new.split()), why
        self.text = self.at = None

    def find(self):
        """Where its text stands. Blanks and ends of lines count as one; a file that was moved is looked for."""
        pattern = re.compile(r"\s+".join(map(re.escape, self.old.split())))
        names = [self.name] if (ROOT / self.name).is_file() else []
        for name in names + [n for n in sources() if n != self.name]:
            text = (ROOT / name).read_text(encoding="utf-8")
            found = list(pattern.finditer(text))
            if found:
                self.name, self.text, self.at = name, text, found[0]
                return "" if len(found) == 1 else f"{len(found)} times in {name}"
        return "nowhere"

    def planted(self):
        return self.text[:self.at.start()] + self.new + self.text[self.at.end():]

    def lines(self):
        first = self.text.count("\n", 0, self.at.start()) + 1
        return range(first, first + self.at.group().count("\n") + 1)

    def key(self):
        return hashlib.sha256("\0".join((self.old, self.new, self.text)).encode()).hexdigest()[:16]

    def room(self):
        """core/base, fs, tools/load/memory; what lies right in tools/ is tools."""
        folders = self.name.split("/")[:-1]
        if folders[0] == "fs":
            return "fs"
        return "/".join(folders[:3] if folders[1:3] == ["load", "memory"] else folders[:2])

    def folder(self):
        return self.name.rsplit("/", 1)[0]

    def __str__(self):
        return f"{self.name}:{self.lines()[0]}: {self.old[:60]} -> {self.new[:60] or '(nothing)'}"


@functools.cache
def sources():
    return tree.select(ROOT, ".c", ".h", ".py", under=tree.ROOMS)


@functools.cache
def includes(header):
    """The sources that include it themselves."""
    line = re.compile(rf'^#include "{re.escape(header)}"', re.M)
    return [n for n in sources() if n.endswith(".c") and line.search((ROOT / n).read_text(encoding="utf-8"))]


@functools.cache
def headers():
    return set(tree.select(ROOT, ".h", under=tree.ROOMS))


def room_of(test):
    """tools/load of tools/load/place/ship, rules of rules/flow."""
    return "/".join(test.rsplit("/", 1)[0].split("/")[:2])


def units_of(own):
    """What a unit test may say it covers that has to do with @own.c."""
    return {own, units.module(own + ".c", headers())}


def read_list():
    """Blocks between blank lines: a file, then "-" what is there, "+" what takes its place, "?" why no test can see it."""
    out = []
    for block in re.split(r"\n\s*\n", (ROOT / "tests/mutants.txt").read_text(encoding="utf-8")):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        part = {sign: " ".join(line[1:] for line in lines[1:] if line[0] == sign) for sign in "-+?"}
        if not part["-"] or any(line[0] not in "-+?" for line in lines[1:]):
            sys.exit(f"mutants.txt: not a file and lines with - and +: {lines[0]}")
        out.append(Fault(lines[0].strip(), part["-"], part["+"], part["?"].strip()))
    return out


def changed_lines(n):
    """Lines of each file that the last @n commits wrote."""
    out, name = {}, None
    diff = subprocess.run(["git", "-C", ROOT, "diff", "-U0", f"HEAD~{n}"], capture_output=True, text=True, check=True)
    for line in diff.stdout.splitlines():
        if line.startswith("+++ b/"):
            name = line[6:]
        m = re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line)
        if m:
            first = int(m[1])
            out.setdefault(name, set()).update(range(first, first + int(m[2] or 1)))
    return out


# ---- the copy ----

def put(name, data):
    """Write only what differs: ninja goes by times."""
    path = TREE / name
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def copy_tree():
    """The tree as it is now; returns what it is, in a number."""
    sum_ = hashlib.sha256()
    got = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         capture_output=True, check=True)
    names = sorted(set(os.fsdecode(got.stdout).split("\0")) - {""})
    for old in TREE.rglob("*"):
        if not old.is_dir() and old.relative_to(TREE).as_posix() not in names:
            old.unlink()
    for name in names:
        path = ROOT / name
        if path.is_symlink():
            to = TREE / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if not to.is_symlink():
                to.symlink_to(os.readlink(path))
        elif path.is_file():
            data = path.read_bytes()
            put(name, data)
            shutil.copymode(path, TREE / name)
            sum_.update(name.encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(data).digest())
    return sum_.hexdigest()[:16]


def passes(test):
    """Run one of meson's tests; of one that hangs its children end, too."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    child = subprocess.Popen(test["cmd"], cwd=test["workdir"], env={**os.environ, **test["env"]}, start_new_session=True, **quiet)
    try:
        return child.wait(test["timeout"] or None) in (0, tree.SKIP)
    except subprocess.TimeoutExpired:
        return False
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def frameworks(test):
    """Those that the test's name has in it, and that are there."""
    return {word for word in test.split("-") if os.environ.get(f"DCPFS_TEST_{word.upper()}")}


class Tests:
    """Those of the copy's build, and what they are about."""

    def __init__(self, jobs):
        self.jobs, self.kills = jobs, collections.Counter()  # by folder and test: those that killed most go first
        if not (BUILD / "build.ninja").is_file():
            # built often, run briefly
            subprocess.run(["meson", "setup", BUILD, TREE, "-Doptimization=0", "-Ddebug=false"], check=True,
                           stdout=subprocess.DEVNULL)
        else:
            subprocess.run(["ninja", "-C", BUILD, "build.ninja"], check=True, stdout=subprocess.DEVNULL)
        got = {what: json.loads(subprocess.run(["meson", "introspect", f"--{what}", BUILD], check=True, capture_output=True).stdout)
               for what in ("tests", "targets")}
        made = {t["id"]: [pathlib.Path(f).relative_to(BUILD).as_posix() for f in t["filename"]] for t in got["targets"]}
        self.tests, self.suite, self.targets, self.script = {}, {}, {}, {}
        for t in got["tests"]:
            suites = {s.rsplit(":", 1)[-1] for s in t["suite"]}
            if not suites & set(SUITES) or "frameworks" in suites and not frameworks(t["name"]):
                continue
            self.tests[t["name"]], self.suite[t["name"]] = t, next(s for s in SUITES if s in suites)
            self.targets[t["name"]] = [f for id_ in t["depends"] for f in made[id_]]
            self.script[t["name"]] = " ".join(
                pathlib.Path(a).read_text(encoding="utf-8") for a in t["cmd"][1:2] if a.endswith(".py"))
        self.sound = set()

    def covering(self, names):
        return {name for name in self.units() if names & units.covered(TREE, [f"tests/unit/{self.tests[name]['cmd'][1]}.c"])}

    def units(self):
        return {name for name, suite in self.suite.items() if suite == "unit"}

    def related(self, fault):
        """Unit tests that cover its file, then the others of their rooms, then scripts: of fs/ those with a mount, of
        tools/ those that call its command or one built on its folder, or have its name."""
        if fault.name.endswith(".py"):
            stem = pathlib.Path(fault.name).stem
            users = {f.stem for f in (ROOT / fault.name).parent.glob("*.py") if f"from .{stem} import" in f.read_text(encoding="utf-8")}
            return [{name for name, suite in self.suite.items() if suite == "frameworks" and frameworks(name) & {stem, *users}},
                    {name for name, suite in self.suite.items() if suite == "python"}]
        own = fault.name.rsplit(".", 1)[0]
        names = units_of(own)
        room, *folders, stem = own.split("/")
        near = self.covering(names)
        if not near and fault.name.endswith(".h"):  # a header that no test names: the sources that include it
            near = self.covering(set().union(*(units_of(n.removesuffix(".c")) for n in includes(fault.name))))
        beside = {room_of(name) for name in near}
        related = [near, {name for name in self.units() if room_of(name) in beside} - near] if near else []
        if room == "tools" and folders:
            verb = stem if folders[0] == "verbs" else folders[0]
            words = "|".join([verb, *BUILT_ON.get(verb, ())])
            related.append({name for name, suite in self.suite.items() if
                            suite in SCRIPTS and re.search(f'"({words})"', self.script[name]) or
                            suite in ("load", "python") and re.search(rf"\b({words})\b", name)})
        elif room == "fs":
            related.append({name for name, suite in self.suite.items() if suite == "mount"})
        elif room == "tools":  # by its name, too; where no unit test covers it, also those that only mention it
            related.append({name for name, suite in self.suite.items()
                            if suite in SCRIPTS and re.search(rf"\b{stem}\b", name if near else f"{name} {self.script[name]}")})
        return related

    def build(self, names):
        """None, or that it cannot be."""
        targets = sorted({t for n in names for t in self.targets[n]})
        got = subprocess.run(["ninja", "-C", BUILD, "-j", str(self.jobs), *targets], capture_output=True, text=True)
        return None if got.returncode == 0 else next(
            (line for line in got.stdout.splitlines() if "error" in line), got.stdout[-200:])

    def run(self, names, folder):
        """The first that fails, unit tests and those that saw most faults of @folder looked at first; None: all pass."""
        failed = []

        def one(name):
            if not failed and not passes(self.tests[name]):
                failed.append(name)

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(one, sorted(names, key=lambda n: (self.suite[n] != "unit", -self.kills[folder, n], n))))
        return failed[0] if failed else None

    def is_sound(self, name):
        """Does it pass without a fault? One that does not proves nothing."""
        if name not in self.sound:
            broken = self.build([name])
            if broken:
                sys.exit(f"without any fault: {broken}")
            if not passes(self.tests[name]):
                print(f"{name} fails without any fault: left out")
                del self.suite[name]
                return False
            self.sound.add(name)
        return True


def attempt(fault, tests, only_related):
    """What became of it: "killed by <test>", "survived", why it could not be planted; None: no test is related."""
    related = tests.related(fault)
    if only_related and not any(related):
        return None
    for names in related if only_related else [*related, set(tests.suite).difference(*related)]:
        while names & set(tests.suite):
            names &= set(tests.suite)
            put(fault.name, fault.planted().encode())
            try:
                broken = tests.build(names)
                if broken:
                    return f"does not compile: {broken}"
                failed = tests.run(names, fault.folder())
            finally:
                put(fault.name, fault.text.encode())
            if not failed:
                break
            if tests.is_sound(failed):
                tests.kills[fault.folder(), failed] += 1
                return f"killed by {failed}"
    return "survived"


# ---- the report ----

def report(faults, results):
    """Rates are of the faults that can be seen; returns the number of survivors without an explanation."""
    rooms, bad = {}, []
    for f in faults:
        known = results.get(f.key(), {}).get("what")
        explained = known == "survived" and f.why
        if known and not known.startswith("killed"):
            bad += [] if explained else [f]
            print(f"{known}: {f}" + (f"\n    {f.why}" if f.why else ""))
        for room in (f.room(), "all"):
            n = rooms.setdefault(room, [0] * 4)
            for i, counts in enumerate((True, known, (known or "").startswith("killed"), explained)):
                n[i] += bool(counts)
    width = max(map(len, rooms), default=0)
    print(f"\n{'room':{width}} listed planted killed explained  rate")
    for room, (listed, planted, killed, explained) in sorted(rooms.items(), key=lambda r: (r[0] == "all", r)):
        rate = f"{100 * killed / (planted - explained):.1f} %" if planted > explained else "-"
        print(f"{room:{width}} {listed:6} {planted:7} {killed:6} {explained:9} {rate:>7}")
    return len(bad)


def main():
    p = argparse.ArgumentParser(description="plant faults, and see which no test notices")
    p.add_argument("words", nargs="*", help="only faults in files whose names have one of these in them")
    p.add_argument("--changed", type=int, metavar="N", help="only faults in lines that the last N commits wrote")
    p.add_argument("--related", action="store_true", help="run the related tests only")
    p.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), metavar="N", help="tests at a time; default: as processors")
    p.add_argument("--fresh", action="store_true", help="forget what is known")
    p.add_argument("--list", action="store_true", help="say which faults there are, and end")
    p.add_argument("--check", action="store_true", help="say which faults cannot be planted any more, and end")
    args = p.parse_args()
    faults = read_list()
    lost = [f"{f.name}: \"{f.old}\" is {found}: mend or remove this entry of tests/mutants.txt"
            for f in faults for found in [f.find()] if found]
    if args.check:
        tree.finish("mutants", lost, len(faults))
    if lost:
        sys.exit("\n".join(lost))
    if args.words:
        faults = [f for f in faults if any(w in f.name for w in args.words)]
    if args.changed:
        lines = changed_lines(args.changed)
        faults = [f for f in faults if lines.get(f.name, set()) & set(f.lines())]
    if args.list:
        print(*faults, sep="\n")
        return
    WORK.mkdir(parents=True, exist_ok=True)
    state = copy_tree()
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() and not args.fresh else {}
    tests = Tests(args.jobs)
    tests.kills.update((r["fault"].split(":")[0].rsplit("/", 1)[0], r["what"].removeprefix("killed by ")) for r in results.values())
    for number, f in enumerate(faults, 1):
        known = results.get(f.key())
        if known and (known["what"].startswith("killed") or (f.why and known["what"] == "survived") or
                      (known["state"] == state and (args.related or not known["related"]))):
            continue
        began = time.monotonic()
        what = attempt(f, tests, args.related)
        if what:
            results[f.key()] = {"what": what, "state": state, "related": args.related, "fault": str(f)}
            RESULTS.write_text(json.dumps(results, indent=1))
        print(f"{number}/{len(faults)} {what or 'no test is related'}: {f} ({time.monotonic() - began:.0f} s)", flush=True)
    sys.exit(1 if report(faults, results) else 0)


if __name__ == "__main__":
    main()
