#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which SOURCE, version and key is meant; where indexes go; what a person reads about it."""
import json
import math
import os
import pickle
import pty
import re
import shutil
import sqlite3
import subprocess

from cli import BAD, DCPFS, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run

FSDP2 = GOLDEN / "dcp-fsdp2" / "ckpt"
MANIFEST = json.loads((GOLDEN / "dcp-fsdp2" / "manifest.json").read_text())
KEY = MANIFEST["versions"][0]["tensors"][0]["key"]


def copy(name, *versions):
    """A directory of copies of step-10 under other names."""
    top = SCRATCH / name
    for v in versions:
        shutil.copytree(FSDP2 / "step-10", top / v)
    return top


def broken_versions_are_not_latest():
    runs = copy("broken", "step-1", "step-2")
    for data_file in (runs / "step-2").glob("*.distcp"):
        data_file.write_bytes(b"")
    got = run("ls", "--json", runs, "latest")
    equal(json.loads(got.stdout)["version"], "step-1", "a version of which no key can be read is not the latest")
    check(b"step-2: none of its tensors can be read" in got.stderr and b"taking step-1" in got.stderr, "that it was passed over is said")
    equal(data("ls", "--json", runs, "step-2")["version"], "step-2", "by its name it is shown")
    shutil.rmtree(runs / "step-1")
    equal(data("ls", "--json", runs, "latest")["version"], "step-2", "where there is no other it is taken")
    runs = SCRATCH / "broken-tensors"
    for name in ("checkpoint-1", "checkpoint-2"):
        shutil.copytree(GOLDEN / "parts/ckpt/1-hf-trainer", runs / name)
        (runs / name / "optimizer.pt").unlink()
        for state in (runs / name).glob("rng_state_*"):
            state.unlink()
    model = runs / "checkpoint-2/model.safetensors"
    for damage in (model.read_bytes()[:-8].replace(b"F32", b"F64"), b""):
        model.write_bytes(damage)
        got = run("ls", "--json", runs, "latest")
        equal(json.loads(got.stdout)["version"], "checkpoint-1", f"objects that can be read do not make a version without tensors the latest: {got.stderr}")
        check(b"checkpoint-2: none of its tensors can be read" in got.stderr, f"that is said: {got.stderr}")


def versions_are_found_by_name():
    runs = copy("runs", "step-9", "step-10", "step-100", "step-0100x")
    for word, want in (("step-9", "step-9"), ("9", "step-9"), ("10", "step-10"), ("latest", "step-100"),
                       ("step-0100x", "step-0100x")):
        got = data("ls", "--json", runs, word)
        equal(got and got["version"], want, f"version {word}")
    fails(NO, "several versions", "ls", runs, "100")
    fails(NO, 'Nearest: "step-10"', "ls", runs, "stp-10")
    fails(NO, "no version", "ls", runs, "11")
    equal([v["name"] for v in data("ls", "--json", runs)], ["step-9", "step-10", "step-0100x", "step-100"],
          "versions in the order of their numbers")
    equal(run("ls", "--names", runs).stdout.decode().split(), ["step-9", "step-10", "step-0100x", "step-100"],
          "ls --names of several versions")
    equal(data("ls", "--json", FSDP2, "latest")["version"], "step-20", "a version that died is not the latest")
    one = data("ls", "--json", FSDP2 / "step-20")
    equal(one["version"], "step-20", "a single checkpoint is a version by its own name")
    equal(data("ls", "--json", ".", cwd=(FSDP2 / "step-20"))["version"], "step-20", "the current directory")


def hf_shows_the_models_names():
    """--hf: the names of hf/, by rules that fit, of a preset or of a file; what no rule fits is named."""
    top, rules = copy("model", "step-10"), SCRATCH / "x.rules"
    rules.write_text("model.norm.weight -> norm\nmodel.scale -> norm\nmodel.gain -> g.{x}\n".replace("{x}", "x"))
    keys = [t["key"] for t in data("ls", "--json", FSDP2, "10")["tensors"]]
    hf = [t["key"] for t in data("ls", "--json", "--hf", FSDP2, "10")["tensors"]]
    check(0 < len(hf) < len(keys) and not any("optim" in k for k in hf), f"weights alone: {hf[:5]}")
    equal({t["key"] for t in data("ls", "--json", "--hf-rules", "identity", FSDP2, "10")["tensors"]}, set(keys), "identity")
    got = data("ls", "--json", "--hf-rules", rules, top)
    equal({t["key"] for t in got["tensors"]}, {"norm", "g.x"}, "rules of a file")
    for verb in (("cat",), ("cat", "--as", "npy")):
        equal(run(*verb, "--hf-rules", rules, top, "g.x").stdout, run(*verb, top, "model.gain").stdout, f"{verb}: its bytes")
    fails(BAD, "norm", "cat", "--hf-rules", rules, top, "norm")
    os.mkfifo(SCRATCH / "fifo.rules")
    fails(BAD, "fifo.rules: not a regular file", "ls", "--hf-rules", SCRATCH / "fifo.rules", top)  # nothing is waited for
    fails(NO, "no key", "cat", "--hf-rules", rules, top, "model.gain")
    equal(data("show", "--json", "--hf", FSDP2, "10", "model.scale")["key"], "model.scale", "show")
    equal(data("plan", "--json", "--hf", "--layout", "fsdp2", FSDP2, "10")["tensors"], len(hf), "plan")
    check("optim" not in run("tree", "--hf", FSDP2, "10").stdout.decode(), "tree")
    rules.write_text("a -> b\nnonsense\n")
    fails(BAD, "x.rules", "ls", "--hf-rules", rules, top)
    fails(USAGE, 'nearest is "identity"', "ls", "--hf-rules", "identify", top)
    fails(USAGE, "near are torchtitan-llama3, torchtitan-llama4", "ls", "--hf-rules", "llama", top)
    fails(USAGE, "no file nosuch, and no preset nosuch (see: dcpfs rules list)", "ls", "--hf-rules", "nosuch", top)
    fails(ENV, "No such file", "ls", "--hf-assets", SCRATCH / "none", top)


def every_verb_takes_a_version():
    """Every verb that reads takes VERSION behind SOURCE, or anywhere as an option."""
    for verb, *rest in (("ls", "--json"), ("tree", "--json"), ("index", "--json"), ("show", KEY), ("cat", KEY),
                        ("plan", "--layout", "fsdp2", "--json")):
        both = [run(verb, FSDP2, "10", *rest), run(verb, "--version", "10", FSDP2, *rest),
                run(verb, FSDP2, *rest, "--version=step-10")]
        outs = {"".join(c for c in got.stdout.decode("latin-1") if verb != "index" or not c.isdigit()) for got in both}
        check(all(got.returncode == OK for got in both) and len(outs) == 1, f"{verb}: VERSION by operand and option")
        fails(USAGE, "VERSION was given by an option", verb, "--version", "10", FSDP2, "20", *rest)
        fails(NO, "no version", verb, FSDP2, "77", *rest)
    fails(NO, "it names a version (--version 20): which KEY of it?", "show", FSDP2, "20")
    fails(NO, "it names a version (--version latest): which KEY of it?", "show", FSDP2, "latest")
    check(run("cat", FSDP2, "10", "model.scale").stdout != run("cat", FSDP2, "20", "model.scale").stdout, "versions differ")


def passed_over_versions_are_reported():
    """A newest version that is damaged: the one before it is taken, and that is said."""
    runs = copy("damaged", "step-1", "step-2")
    (runs / "step-2" / ".metadata").write_bytes(b"\x80\x02not a pickle")
    got = run("ls", "--names", runs, "latest")
    equal(got.returncode, OK, "the newest is damaged")
    check(b"dcpfs: step-2: " in got.stderr and b"; taking step-1" in got.stderr,
          f"what was passed over is told: {got.stderr}")
    equal(len(got.stderr.splitlines()), 1, "in one line")
    fails(BAD, "step-2: ", "ls", runs, "step-2")
    got = run("ls", runs)
    equal(got.returncode, OK, "ls of versions lists the damaged one")
    check(b"refused" in got.stdout, "as refused")
    fails(BAD, "step-2: ", "index", runs)
    linked = copy("linked", "step-1")
    (linked / "step-2").symlink_to((FSDP2 / "step-20").resolve())
    fails(BAD, "step-2: it is a link out of the source", "ls", linked, "step-2")
    got = run("ls", "--names", linked, "latest")
    check(got.returncode == OK and got.stderr.startswith(b"dcpfs: step-2: it is a link out of the source") and
          got.stderr.endswith(b"; taking step-1\n"), f"a link out is passed over: {got.stderr}")
    shutil.copytree(FSDP2 / "step-10", runs / "step-3")
    fails(BAD, "step-2: ", "index", runs)  # though the last is sound
    for v in ("step-1", "step-2", "step-3"):
        (runs / v / ".metadata").unlink()
    fails(BAD, "no complete version", "index", runs)


def contents():
    """A file that is named, and whose name says nothing, is what it begins with."""
    top = SCRATCH / "contents"
    top.mkdir()
    head = json.dumps({"w": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
    safe = len(head).to_bytes(8, "little") + head + b"abc"
    save = (GOLDEN / "torch-save" / "ckpt" / "zip.pt").read_bytes()
    old = (GOLDEN / "torch-save" / "ckpt" / "legacy.pt").read_bytes()
    for content, family in ((safe, "safetensors"), (save, "torch-save"), (old, "torch-save"),
                            (pickle.dumps({"a": 1}), "pickle")):
        for name in ("model.weights", "0123abcd", "epoch=3.5"):
            (top / name).write_bytes(content)
            equal((data("ls", "--json", top / name) or {}).get("format"), family, f"{name} of {family}")
            listed = data("ls", "--versions", "--json", top / name)
            equal([v["name"] for v in listed], [name], "by its own name")
    (top / "model.weights").write_bytes(safe)
    equal(run("cat", top / "model.weights", "w").stdout, b"abc", "and it is read")
    fails(BAD, "not a checkpoint", "ls", top)
    (top / "model.weights").write_bytes(b"GGUF....")
    fails(BAD, "begins like a GGUF", "ls", top / "model.weights")
    fails(BAD, "is one file of a checkpoint", "ls", FSDP2 / "step-10" / "__0_0.distcp")


def not_permitted():
    """What one may not look into is no "not a checkpoint"."""
    top = SCRATCH / "shut"
    (top / "run" / "step-5").mkdir(parents=True)
    (top / "weights").write_bytes(b"PK")
    (top / "weights").chmod(0)
    (top / "run" / "step-5").chmod(0)
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    for source, shut in (("weights", "weights"), ("run", "run/step-5")):
        got = subprocess.run([*drop, DCPFS, "ls", top / source], capture_output=True, check=False)
        equal((got.returncode, got.stderr.decode()), (ENV, f"dcpfs: {top / shut}: Permission denied\n"), f"ls of {source}")
    (top / "run" / "step-5").chmod(0o700)


def wrong_sources_are_refused():
    empty = SCRATCH / "empty"
    empty.mkdir()
    fails(BAD, "not a checkpoint", "ls", empty)
    fails(ENV, "No such file", "ls", SCRATCH / "absent")
    contents()
    deep = SCRATCH / "deep"
    shutil.copytree(FSDP2, deep / "a" / "b")
    fails(BAD, "not a checkpoint", "ls", deep)
    (deep / "a" / "b" / "step-20" / "__3_0.distcp").unlink()
    told = run("ls", "--versions", deep / "a" / "b").stdout.decode()
    check(f"keys cannot be read; dcpfs ls -l {deep / 'a' / 'b'} step-20 says why" in told, told)
    not_permitted()


def wrong_keys_get_the_nearest():
    near = KEY[1:]
    fails(NO, f'Nearest: "{KEY}"', "cat", FSDP2, near)
    fails(NO, "dcpfs ls", "show", FSDP2, "q" * 300)
    got = run("ls", "--names", "--keys", "*.bias*", FSDP2)
    check(got.returncode in (OK, NO), "ls --keys")
    shown = run("ls", "--names", "--keys", KEY, FSDP2).stdout.decode().split()
    equal(shown, [KEY], "ls --keys with one key")
    fails(NO, "matches", "ls", "--keys", "no-such-*", FSDP2)
    for word, nearest in (("model.norm", "model.norm.weight"), ("model.norm.we", "model.norm.weight"),
                          ("norm.weight", "model.norm.weight"), ("model.layers.0.mlp.down", "model.layers.0.mlp.down_proj.weight"),
                          ("optimizer.param_groups.0.par", "optimizer.param_groups.0.params")):
        fails(NO, f'Nearest: "{nearest}"', "show", FSDP2, word)
    fails(NO, '"model.layers.0.*" matches 11.', "show", FSDP2, "model.layers.0")


def rows(*args, **env):
    """A table as --tsv has it: dictionaries."""
    got = run(*args, "--tsv", **env)
    check(got.returncode in (OK, NO), f"{args}: exit {got.returncode} {got.stderr.decode()}")
    head, *lines = got.stdout.decode().split("\n")
    equal(lines.pop(), "", f"{args}: the last line ends")
    cells = [[re.sub(r"\\(\\|x..)", lambda m: chr(int(m[1][1:], 16)) if m[1] != "\\" else "\\", c)
              for c in line.split("\t")] for line in lines]
    names = head.split("\t")
    check(all(len(c) == len(names) for c in cells), f"{args}: every line has all columns")
    return [dict(zip(names, c)) for c in cells]


def tsv_agrees_with_json():
    """--tsv says what --json says, in columns that stay."""
    told = data("ls", "--json", FSDP2)
    equal([[r["version"], r["format"], int(r["tensors"]), int(r["nbytes"])] for r in rows("ls", FSDP2) if r["state"] == "complete"],
          [[v["name"], v["format"], v["tensors"], v["nbytes"]] for v in told if v["complete"]], "versions")
    keys = data("ls", "--json", FSDP2, "10")
    table = rows("ls", FSDP2, "10")
    equal([[r["key"], json.loads(r["shape"]), int(r["elements"]), int(r["nbytes"]), int(r["files"])] for r in table if r["kind"] == "tensor"],
          [[t["key"], t["shape"], t["elements"], t["nbytes"], t["files"]] for t in keys["tensors"]], "tensors")
    equal(sum(r["kind"] == "object" for r in table), len(keys["objects"]), "objects")
    want = {t["key"]: t for t in MANIFEST["versions"][0]["tensors"]}
    for t in keys["tensors"]:
        equal(t["elements"], math.prod(want[t["key"]]["shape"]), f"parameters of {t['key']}")
    total = sum(t["elements"] for t in keys["tensors"] if not t["alias_of"])
    equal([keys["elements"], told[0]["elements"]], [total] * 2, "parameters of a version")
    text = run("ls", FSDP2, "10").stdout.decode().splitlines()[-1]
    check(f"({total:,}), " in text and text.startswith(f"{len(want)} tensors, "), f"the last line of ls: {text}")
    nodes = data("tree", "--json", FSDP2, "10")["nodes"]
    equal(nodes[0]["elements"], total, "parameters of the tree")
    equal([[json.loads(r["path"]), int(r["elements"])] for r in rows("tree", FSDP2, "10")],
          [[n["path"], n["elements"]] for n in nodes], "tree")
    pieces = data("show", "--json", FSDP2, "10", KEY)["pieces"]
    equal([[r["file"], int(r["nbytes"])] for r in rows("show", FSDP2, "10", KEY)], [[p["file"], p["nbytes"]] for p in pieces],
          "pieces")
    equal({r["key"]: r["digest"] for r in rows("show", "--digest", FSDP2, "10", "*")},
          data("show", "--digest", "--json", FSDP2, "10", "*"), "digests")
    fails(USAGE, "it has no pieces", "show", "--tsv", FSDP2, "train.info")
    equal([r["version"] for r in rows("index", FSDP2)], ["step-10", "step-20"], "indexes")
    equal([r["name"] for r in rows("doctor")], [c["name"] for c in json.loads(run("doctor", "--json").stdout)["checks"]], "doctor")
    ranks = data("plan", "--json", "--layout", "fsdp4", FSDP2)["ranks"]
    equal([[int(r[c]) for c in ("rank", "needs", "reads", "receives")] for r in rows("plan", "--layout", "fsdp4", FSDP2)],
          [[r[c] for c in ("rank", "needs", "reads", "receives")] for r in ranks], "plan")
    fails(USAGE, "--json and --tsv do not go together", "ls", "--json", "--tsv", FSDP2)
    fails(USAGE, "--names and --json do not go together", "ls", "-1", "--json", FSDP2, "latest")
    odd = SCRATCH / "odd-keys" / "step-\x1b[31m"
    odd.mkdir(parents=True)
    names = ["a\tb", "c\nd", "e\\x41", "\x1b[0m", "\u0085", "plain"]
    head = {k: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, k in enumerate(names)}
    text = json.dumps(head).encode()
    (odd / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"123456")
    got = [r["key"] for r in rows("ls", odd)]
    equal(sorted(k.encode("latin-1").decode() for k in got), sorted(names), "text comes back exactly")
    for args in (("ls",), ("tree",), ("index",), ("load",), ("plan", "--layout", "fsdp2"), ("plan", "--layout", "fsdp2", "--rank", "1")):
        text = run(*args, odd.parent).stdout
        check(b"step-\\x1b[31m" in text and b"\x1b" not in text, f"{args}: a name that moves the cursor: {text[:100]}")
    check(b": 1 part, 1 B in " in run("load", odd.parent, "--keys", "plain").stdout, "one part")


def patterns_match_keys():
    """A KEY with * ? [ stands for all that match, unless a key is called so."""
    want = run("ls", "--names", "--keys", "model.*norm*", FSDP2, "latest").stdout.decode().split()
    check(len(want) > 2, "several keys match")
    shown = run("show", FSDP2, "model.*norm*").stdout.decode()
    equal([x.split()[1] for x in shown.splitlines() if x.startswith("key ")], want, "show PATTERN")
    told = data("show", "--json", FSDP2, "model.*norm*")
    equal([x["key"] for x in told], want, "show --json PATTERN")
    equal(data("show", "--json", FSDP2, want[0]), told[0], "one key is one object")
    equal([x["key"] for x in data("show", "--json", FSDP2, want[0].replace("model", "mode?"))], want[:1],
          "a pattern that one key matches is an array all the same")
    lines = run("show", "--digest", FSDP2, "model.*norm*").stdout.decode().splitlines()
    equal([x.split("  ")[1] for x in lines], want, "show --digest PATTERN")
    equal(list(data("show", "--digest", "--json", FSDP2, "*")), list(data("show", "--digest", "--json", FSDP2)),
          "objects have no digest")
    each = [run("cat", FSDP2, key).stdout for key in want]
    equal(run("cat", FSDP2, "model.*norm*").stdout, b"".join(each), "cat PATTERN")
    npy = [run("cat", "--as", "npy", FSDP2, key).stdout for key in want]
    equal(run("cat", "--as", "npy", FSDP2, "model.*norm*").stdout, b"".join(npy), "cat --as npy PATTERN")
    equal(len(run("cat", FSDP2, "optimizer.param_groups*").stdout.splitlines()),
          len(run("ls", "--names", "--keys", "optimizer.param_groups*", FSDP2, "latest").stdout.splitlines()), "objects, a line each")
    fails(USAGE, "matches tensors and objects", "cat", FSDP2, "*")
    fails(USAGE, "one header", "cat", "--as", "safetensors", FSDP2, "model.*norm*")
    for verb in ("show", "cat"):
        fails(NO, 'no key of step-20 matches "x*"', verb, FSDP2, "x*")
    fails(NO, 'no tensor of step-20 matches "train.info*"', "show", "--digest", FSDP2, "train.info*")
    odd = SCRATCH / "odd"
    odd.mkdir()
    head = {k: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, k in enumerate(("a*", "ab", "a[b]"))}
    text = json.dumps(head).encode()
    (odd / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"123")
    equal(run("cat", odd, "a*").stdout, b"1", "a key that is called like a pattern")
    equal(run("cat", odd, "a[b]").stdout, b"3", "a key with brackets")


def tables_fit():
    for width in (80, 100):
        for args in (("ls", FSDP2), ("ls", FSDP2, "latest"), ("tree", FSDP2)):
            lines = run(*args, COLUMNS=width).stdout.decode().splitlines()
            check(lines and max(map(len, lines)) <= width, f"dcpfs {args} in {width} columns")


def tree_names_stay_different():
    """Keys that are too long for the terminal are shortened, and no two of them to the same text."""
    long = SCRATCH / "long"
    long.mkdir()
    names = [f"{side}{'x' * 60}{middle}{'y' * 60}" for side in "ab" for middle in "cdef"] + ["short"]
    head = {n: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, n in enumerate(names)}
    text = json.dumps(head).encode()
    (long / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(len(names)))
    for width in (30, 60, 80):
        shown = [line.split()[1] for line in run("tree", long, COLUMNS=width).stdout.decode().splitlines()[1:]]
        equal(len(shown), len(names), "tree shows all keys")
        equal(len(set(shown)), len(names), f"tree shortens in {width} columns: {shown}")
    check(all(len(line) < 80 for line in run("tree", long, COLUMNS=79).stdout.decode().splitlines()), "and the lines fit")


def terminals_get_colours_and_no_bytes():
    """Bytes of a tensor are not thrown at a terminal; colours only there, and not against NO_COLOR."""
    for args, env, code, painted in ((("cat", FSDP2, KEY), {}, USAGE, False),
                                     (("ls", FSDP2), {}, OK, True),
                                     (("ls", FSDP2), {"NO_COLOR": "1"}, OK, False),
                                     (("ls", FSDP2), {"OMPI_COMM_WORLD_SIZE": "2"}, OK, False)):  # mpirun makes terminals
        master, slave = pty.openpty()
        full = dict(os.environ, DCPFS_CACHE=str(SCRATCH / "cache"), TERM="xterm", **env)
        got = subprocess.run([DCPFS, *map(str, args)], stdout=slave, stderr=subprocess.PIPE, env=full)
        os.close(slave)
        text = b""
        try:
            while chunk := os.read(master, 65536):
                text += chunk
        except OSError:
            pass
        os.close(master)
        equal(got.returncode, code, f"{args[0]} on a terminal {got.stderr}")
        equal(b"\033" in text, painted, f"{args[0]} on a terminal with {env} is painted")


def indexes_are_built_once():
    cache = SCRATCH / "own-cache"
    first = data("index", "--json", FSDP2, DCPFS_CACHE=cache)
    check(all(v["built"] for v in first), "the first time everything is built")
    second = data("index", "--json", FSDP2, DCPFS_CACHE=cache)
    check(not any(v["built"] for v in second), "the second time nothing is")
    third = data("index", "--rebuild", "--json", FSDP2, DCPFS_CACHE=cache)
    check(all(v["built"] for v in third), "--rebuild builds")
    paths = run("index", "--path", FSDP2, DCPFS_CACHE=cache).stdout.decode().split()
    equal(paths, [v["path"] for v in second], "--path")
    check(all(p.startswith(str(cache)) for p in paths), f"indexes are in the cache: {paths}")
    rows = sqlite3.connect(f"file:{paths[0]}?mode=ro", uri=True).execute("select count(*) from tensor").fetchone()
    equal(rows[0], second[0]["tensors"], "people may ask the index")
    one = run("index", FSDP2, "10", DCPFS_CACHE=cache).stdout.decode()
    check("step-10" in one and "step-20" not in one and "current" in one, f"index of one version: {one}")

    sidecar = SCRATCH / "side.index"
    got = data("index", "--index", sidecar, "--json", FSDP2 / "step-20", DCPFS_CACHE=cache)
    equal([got[0]["built"], sidecar.exists()], [True, True], "--index")
    got = data("index", "--index", sidecar, "--json", FSDP2 / "step-20", DCPFS_CACHE=cache)
    equal(got[0]["built"], False, "--index a second time")
    fails(USAGE, "names one file", "ls", "--index", sidecar, FSDP2)
    (SCRATCH / "mnt").mkdir()
    fails(USAGE, "names one file", "mount", "--index", sidecar, FSDP2, SCRATCH / "mnt")
    notes = SCRATCH / "notes.txt"
    notes.write_text("not an index")
    for verb in ("index", "ls"):
        fails(USAGE, "is not an index of dcpfs; it is left as it is", verb, "--index", notes, FSDP2 / "step-20")
    equal(notes.read_text(), "not an index", "--index names a file by mistake: it survives")

    none = run("ls", "--names", FSDP2, "latest", DCPFS_CACHE="")
    equal((none.returncode, none.stderr), (OK, b""), "without a cache")
    got = run("ls", "--names", FSDP2, "latest", DCPFS_CACHE="/proc/no/such")
    equal(got.returncode, OK, "a cache that cannot be made is not an error")
    check(b"indexes stay in memory" in got.stderr and got.stderr.count(b"\n") == 1,
          f"but it is said once: {got.stderr}")
    home = SCRATCH / "home"
    run("index", FSDP2, DCPFS_CACHE=None, XDG_CACHE_HOME=None, HOME=home)
    check((home / ".cache" / "dcpfs").is_dir(), "~/.cache/dcpfs")
    run("index", FSDP2, DCPFS_CACHE=None, XDG_CACHE_HOME=home / "xdg", HOME=home)
    check((home / "xdg" / "dcpfs").is_dir(), "XDG_CACHE_HOME")


def full_outputs_are_errors():
    with open("/dev/full", "wb") as full:
        got = run("cat", FSDP2, KEY, stdout=full)
    equal(got.returncode, ENV, "cat onto a full disk")
    check(b"standard output: No space left" in got.stderr, f"cat onto a full disk: {got.stderr}")
    read, write = os.pipe()
    os.close(read)
    got = run("cat", FSDP2, KEY, stdout=write)
    os.close(write)
    equal((got.returncode, got.stderr), (OK, b""), "cat into a closed pipe")


versions_are_found_by_name()
broken_versions_are_not_latest()
hf_shows_the_models_names()
every_verb_takes_a_version()
passed_over_versions_are_reported()
wrong_sources_are_refused()
wrong_keys_get_the_nearest()
patterns_match_keys()
tsv_agrees_with_json()
tables_fit()
tree_names_stay_different()
terminals_get_colours_and_no_bytes()
indexes_are_built_once()
full_outputs_are_errors()
finish()
