#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plant generated faults, one at a time, and print those that no test notices.

A fault is made from a line of C: a condition negated, a comparison moved by one or turned round, "and" for "or", a
"+ 1" lost, an early return lost, a call lost. Which ones are tried is chosen by a seed: all of the lines that a change
touched (--changed), or a sample (--sample N, as many from each room).

Faults go into a copy of the tree (build/mutants/tree), built there; the checkout stays as it is. For each fault the
related tests run first (unit tests that cover the source, as lint/units.py knows, or a source that includes the header,
then the other tests of their rooms; for core/ the scripts that are named after its file or room, for fs/ suite mount, for
tools/ the scripts that call its command or are about it), then, unless --related is given, all other tests. The tests that saw
most faults of the folder go first. The first test that fails, and passes without the fault, ends the search: the fault
is killed.
Results stay in build/mutants/results.json, so that a run that was stopped goes on where it was.

usage: mutate.py [WORD..] [--changed REV | --sample N] [--seed N] [--related] [-j N] [--fresh] [--list]
"""
import argparse
import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import random
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
    """A place in a file, and the text that takes its place."""

    def __init__(self, name, text, span, new):
        self.name, self.text, self.span, self.new = name, text, span, new
        self.old = text[span[0]:span[1]]

    def planted(self):
        return self.text[:self.span[0]] + self.new + self.text[self.span[1]:]

    def lines(self):
        first = self.text.count("\n", 0, self.span[0]) + 1
        return range(first, first + self.old.count("\n") + 1)

    def key(self):
        return hashlib.sha256("\0".join((str(self.span), self.new, self.text)).encode()).hexdigest()[:16]

    def room(self):
        """core/base, fs, tools/load/memory; what lies right in tools/ is tools."""
        folders = self.name.split("/")[:-1]
        if folders[0] == "fs":
            return "fs"
        return "/".join(folders[:3] if folders[1:3] == ["load", "memory"] else folders[:2])

    def folder(self):
        return self.name.rsplit("/", 1)[0]

    def __str__(self):
        lines = self.text.split("\n")[self.lines()[0] - 1:self.lines()[-1]]
        return f"{self.name}:{self.lines()[0]}: {' '.join(self.old.split())[:60]} -> {self.new[:60]}    in: {' '.join(' '.join(lines).split())[:100]}"


@functools.cache
def sources():
    return tree.select(ROOT, ".c", ".h", under=tree.ROOMS)


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


SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
SWAP = re.compile(r"(?<= )(<=?|>=?|==|!=|&&|\|\|)(?=[ \n])")
STEP = re.compile(r"(?<=[\w)\]]) [-+] 1\b(?![.\w])")
CONDITION = re.compile(r"\b(?:if|while) \(")
EARLY_RETURN = re.compile(r"(?<=\n)\t{2,}(return\b[^;]*;)")
# Releases are left out: only a leak checker sees them.
CALL = re.compile(r"(?<=\n)\t+((?!free\b|close\b|munmap\b|dcp_(?:buf|arena|intern)_finish\b)[a-z_][\w>.-]*\([^;{}]*\);)(?=\n)")


def closing(code, at):
    """The index of the parenthesis that closes the one before @at, or -1."""
    depth = 1
    for i in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if not depth:
            return i
    return -1


def faults_of(name):
    """Every fault that can be made of one source, in the order of its text."""
    text = (ROOT / name).read_text(encoding="utf-8")
    # Comments, strings and preprocessor lines are blanked, so that offsets stay.
    code = tree.TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    code = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()), code, flags=re.M)
    out = [Fault(name, text, m.span(1), SWAPS[m.group(1)]) for m in SWAP.finditer(code)]
    out += [Fault(name, text, m.span(), "") for m in STEP.finditer(code)]
    for m in CONDITION.finditer(code):
        end = closing(code, m.end())
        if end > 0:
            out.append(Fault(name, text, (m.end(), end), f"!({text[m.end():end]})"))
    out += [Fault(name, text, m.span(1), ";") for pattern in (EARLY_RETURN, CALL) for m in pattern.finditer(code)]
    return sorted(out, key=lambda f: f.span)


def sample(faults, n, seed):
    """About @n of them, as many from each room as it has, chosen by @seed."""
    rooms = collections.defaultdict(list)
    for f in faults:
        rooms[f.room()].append(f)
    dice, out = random.Random(seed), []
    for room in rooms.values():
        dice.shuffle(room)
    while len(out) < n and any(rooms.values()):
        out += [room.pop() for _, room in sorted(rooms.items()) if room]
    return sorted(out[:n], key=lambda f: (f.name, f.span))


def changed_lines(rev):
    """Lines of each file that were written since @rev."""
    out, name = {}, None
    diff = subprocess.run(["git", "-C", ROOT, "diff", "-U0", rev], capture_output=True, text=True, check=True)
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
    """The frameworks in the test's name that are there."""
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
        """Unit tests that cover its file, then the others of their rooms, then scripts: of core/ those that are named after its
        file or room, of fs/ those with a mount, of tools/ those that call its command or one built on its folder, or have its name."""
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
        elif room == "core":  # of what a server or a mount answers, scripts know more than unit tests
            words = "|".join({folders[0], stem})
            related.append({name for name, suite in self.suite.items() if suite in SCRIPTS and re.search(rf"\b({words})\b", name)})
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
            (line for line in got.stdout.splitlines() if "error:" in line), got.stdout[-200:])

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
    """Print the survivors and the rates of the rooms; returns how many survived."""
    rooms, survivors = collections.defaultdict(lambda: [0, 0]), 0
    for f in faults:
        known = results.get(f.key(), {}).get("what")
        if not known or known.startswith("does not compile"):
            continue
        if known == "survived":
            survivors += 1
            print(f"{known}: {f}")
        for room in (f.room(), "all"):
            rooms[room][0] += 1
            rooms[room][1] += known.startswith("killed")
    width = max(map(len, rooms), default=0)
    print(f"\n{'room':{width}} planted killed    rate")
    for room, (planted, killed) in sorted(rooms.items(), key=lambda r: (r[0] == "all", r)):
        print(f"{room:{width}} {planted:7} {killed:6} {100 * killed / planted:5.1f} %")
    return survivors


def main():
    p = argparse.ArgumentParser(description="plant faults, and see which no test notices")
    p.add_argument("words", nargs="*", help="only faults in files whose names have one of these in them")
    which = p.add_mutually_exclusive_group()
    which.add_argument("--changed", metavar="REV", help="only faults in lines that were written since this revision")
    which.add_argument("--sample", type=int, metavar="N", help="this many, as many of each room")
    p.add_argument("--seed", type=int, help="of the sample; default: by chance, printed")
    p.add_argument("--related", action="store_true", help="run the related tests only")
    p.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), metavar="N", help="tests at a time; default: as processors")
    p.add_argument("--fresh", action="store_true", help="forget what is known")
    p.add_argument("--list", action="store_true", help="print the faults and end")
    args = p.parse_args()
    faults = [f for name in sources() if name.endswith(".c") and (not args.words or any(w in name for w in args.words))
              for f in faults_of(name)]
    if args.changed:
        lines = changed_lines(args.changed)
        faults = [f for f in faults if lines.get(f.name, set()) & set(f.lines())]
    if args.sample:
        seed = random.randrange(1 << 32) if args.seed is None else args.seed
        print(f"seed {seed}")
        faults = sample(faults, args.sample, seed)
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
        if known and (known["what"].startswith("killed") or
                      known["state"] == state and (args.related or not known["related"])):
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
