# SPDX-License-Identifier: Apache-2.0
"""Malicious and damaged checkpoints: refused or shown as far as they are sound; nothing runs, nothing leaks."""
import json
import os
import re

import arrays
import lib
from lib import case, check, equal, outcome, sha

HOSTILE = lib.GOLDEN / "hostile"
CASES = {c["case"]: c for c in json.loads((HOSTILE / "manifest.json").read_text(encoding="utf-8"))["cases"]}
MEMORY = 256 << 20
SECONDS = 10  # of the processor


def private_memory(pid):
    """Bytes that belong to the process alone."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return 1024 * sum(int(n) for n in re.findall(r"^Private_\w+:\s+(\d+) kB", f.read(), re.M))


def bounded(m):
    if not lib.sanitized():
        check(private_memory(m.pid) < MEMORY, f"private memory: {private_memory(m.pid)} bytes")


def nothing_ran():
    found = [str(p) for p in lib.WORK.rglob("PWNED")]
    equal(found, [], "files that only executed code makes")


def readable(m, c, must):
    """Good keys read as they should, bad ones fail."""
    index = m.index(c["case"])["tensors"]
    for key, want in c["good"].items():
        if key not in index:
            check(not must, f"{key} is missing")
            continue
        data, error = outcome(m.at / c["case"] / index[key]["files"]["raw"])
        check(error is None and sha(data) == want or (error and not must), f"{key}: {error or 'wrong bytes'}")
    for key in c["bad"]:
        if not check(key in index, f"{key} is listed all the same"):
            continue
        for form, name in index[key]["files"].items():
            if name:
                error = outcome(m.at / c["case"] / name)[1]
                equal(error, "EIO", f"opening {form}/ of {key}")
        check(index[key]["error"], f"index.json says why {key} cannot be read")
        said = [e for e in m.control("errors.json") if e["version"] == c["case"] and e["key"] == key]
        check(said and said[0]["error"], f"errors.json says why {key} cannot be read")


def refused(m, name):
    """Not in the root, and incomplete.json says why with what is needed to find it."""
    check(name not in m.versions(), "the version is not listed")
    lib.fails("ENOENT EIO", os.listdir, m.at / name)
    reasons = [x["reason"] for x in m.control("incomplete.json") if x["version"] == name]
    check(reasons and reasons[0], f"incomplete.json says why: {reasons}")


def everything_read(m):
    """Every file of the mount, so that whatever lurks in one is met."""
    for base, _, names in os.walk(m.at):
        for name in names:
            outcome(os.path.join(base, name))


def bad_checkpoints_spare_sound_ones(*options):
    """All of them in one directory: the sound ones stay usable."""
    source = lib.copy(HOSTILE, lib.fresh("source") / "hostile")
    with lib.mount(source, *options) as m:
        m.settled()
        everything_read(m)
        for name, c in CASES.items():
            case(f"{name} among others")
            if c["expect"] == "refuse" or c["expect"] == "either" and name not in m.versions():
                refused(m, name)
            else:
                readable(m, c, c["expect"] != "either")
        check(m.running(), "the daemon lives")
        check(m.latest() in m.versions(), f"latest: {m.latest()}")
        bounded(m)
    nothing_ran()


def no_open_spares_sound_ones():
    """The same where the kernel reads without asking the daemon: what is broken does not look like an empty file."""
    bad_checkpoints_spare_sound_ones("--no-open")


def bad_sources_are_refused_or_mounted():
    """Each as the SOURCE: mounted, or exit 4 with a line that names what is wrong."""
    for name, c in CASES.items():
        case(f"{name} alone")
        source = lib.copy(HOSTILE / c["path"], lib.fresh("source") / name)
        m = lib.Mount(source, answers=False, cwd=source, prefix=("prlimit", f"--cpu={SECONDS * (5 if lib.sanitized() else 1)}"))
        lib.wait(lambda: m.answers() or not m.running(), "it answers or refuses")
        if not m.running() and c["expect"] in ("refuse", "either"):
            m.ends(4)
            check(not lib.mounted(m.at), "nothing is mounted")
            said = [x for x in m.log().splitlines() if x.strip()]
            equal(len(said), 1, f"lines on stderr: {said}")
            check(m.log().startswith("dcpfs: ") and (".metadata" in m.log() or "safetensors" in m.log()),
                  f"the message names the file: {m.log()}")
            continue
        check(c["expect"] != "refuse", "it is mounted, but should be refused")
        if not check(m.running(), f"it is refused, but should be mounted: {m.log()}"):
            continue
        m.settled()
        readable(m, c, c["expect"] != "either")
        everything_read(m)
        bounded(m)
        m.unmount()
    nothing_ran()


def climbing_paths_are_not_followed():
    """The file a climbing path leads to is not opened, though it is there and readable."""
    source = lib.copy(HOSTILE, lib.fresh("source") / "hostile")
    case("climbing-path with its target beside it")
    target = source / "base" / "__1_0.distcp"
    check(target.is_file(), "the target is there")
    with lib.mount(source / "climbing-path") as m:
        m.settled()
        everything_read(m)
        names = {os.readlink(f"/proc/{m.pid}/fd/{n}") for n in os.listdir(f"/proc/{m.pid}/fd")
                 if lib.errno_of(os.readlink, f"/proc/{m.pid}/fd/{n}") is None}
        check(not any("/base/" in n for n in names), f"open files: {sorted(names)}")
        with open(f"/proc/{m.pid}/maps", encoding="utf-8") as f:
            check("/base/" not in f.read(), "the target is not mapped")


def links_out_are_not_followed():
    """Links inside a checkpoint that lead out of it are not followed."""
    source = lib.copy(HOSTILE / "base", lib.fresh("source") / "base")
    secret = lib.WORK / "secret"
    secret.write_bytes(lib.read(source / "__1_0.distcp"))
    os.unlink(source / "__1_0.distcp")
    (source / "__1_0.distcp").symlink_to(secret)
    case("a shard that is a link out of the checkpoint")
    with lib.mount(source) as m:
        m.settled()
        index = m.index("base")["tensors"]
        bad = {k for k, t in index.items() if any(p["file"] == "__1_0.distcp" for p in t["pieces"])}
        failing = {k for k, t in index.items() if outcome(m.at / "base" / t["files"]["raw"])[1]}
        check(bad and bad <= failing, f"keys behind the link {bad}, keys that fail {failing}")
        check(len(failing) < len(index), "other keys read")


def misleading_characters_are_not_shown():
    """Characters that are not seen, or turn what is seen around, are in no name of a file and on no page."""
    hidden = ["\u009b31m", "\u202e", "\u200b", "\ufeff", "\U000e0041"]
    keys = [f"layers.0.a{c}b" for c in hidden] + ["lm_head.`\u202e`", *(f"optimizer.{c}" for c in hidden)]
    source = lib.fresh("source")
    arrays.write_sharded(source / "v\u202e-1", {k: ("U8", [4], 0, b"data") for k in keys}, 1)
    (source / "v\u202e-1" / "config.json").write_text(json.dumps({"model_type": "llama\u202e", "architectures": ["\u009b"]}), encoding="utf-8")
    with lib.mount(source, "--hf-rules", "identity") as m:
        m.settled()
        at = m.at / m.versions()[0]
        for folder in ("npy", "raw", "safetensors"):
            names = os.listdir(at / folder)
            check(len(names) == len(keys) and all(n.isascii() for n in names), f"{folder}/: {names}")
        check(all(n.isascii() for n in os.listdir(m.at / "by-key")), f"by-key/: {os.listdir(m.at / 'by-key')}")
        for text in (at / "index.json", at / "index.jsonl", at / "hf" / "model.safetensors.index.json", m.at / ".dcpfs" / "status.json",
                     at / "README.txt", at / "hf" / "README.md"):
            body = lib.read(text).decode() if text.exists() else ""
            check(not any(c[0] in body for c in hidden), f"{text}: {body}")
        index = m.index(at.name)["tensors"]
        equal(sorted(index), sorted(keys), "keys of index.json")
        for key, t in index.items():
            equal(lib.read(at / t["files"]["raw"]), b"data", key)


lib.main(misleading_characters_are_not_shown, bad_checkpoints_spare_sound_ones, no_open_spares_sound_ones,
         bad_sources_are_refused_or_mounted, climbing_paths_are_not_followed, links_out_are_not_followed)
