# SPDX-License-Identifier: Apache-2.0
"""stats/KEY.json in a mount and the statistics in index.jsonl: the same numbers as dcpfs stats --json, read once."""
import array
import json
import os
import random
import signal
import struct
import subprocess

import lib
from lib import check, equal, ok, read, run

SOURCE = lib.GOLDEN / "dcp-fsdp2" / "ckpt"


def told(source, *words, cache=None):
    done = run(lib.PROGRAM, "stats", source, *words, "--json", env=lib.environment(cache))
    equal(done.returncode, 0, f"dcpfs stats: {done.stderr}")
    return {row["name"]: row for row in json.loads(done.stdout)}


def asked(m):
    return sum(v for k, v in m.stats().items() if k.startswith("io_"))


def name_of(t):
    return t["files"]["raw"][len("raw/"):-len(".bin")] + ".json"


def files_say_what_stats_prints():
    """For each tensor of golden checkpoints that can be read, also of tied ones, whose files say their own key."""
    tied = 0
    for golden in ("dcp-fsdp2", "torch-save", "megatron-legacy", "hf-moe", "torchao"):
        source, _ = lib.golden(golden)
        with lib.mount(source) as m:
            m.settled()
            for version in m.versions():
                lib.case(f"{golden}/{version}")
                tensors = m.index(version)["tensors"]
                base = m.at / version / "stats"
                equal(sorted(os.listdir(base)), sorted(map(name_of, tensors.values())), "names")
                got = {}
                for key, t in tensors.items():
                    if t["error"]:
                        continue
                    size = os.stat(base / name_of(t)).st_size
                    text = read(base / name_of(t))
                    equal(len(text), size, f"{key}: the size is known before")
                    got[key] = json.loads(text)
                    tied += t["alias_of"] is not None
                equal(got, told(source, version, cache=lib.fresh("stats-cache")), "as dcpfs stats measures them")
    check(tied > 0, "some are tied")


def long_tensors_are_measured_alike():
    """Sums depend on how they are split, and dcpfs stats measures spans of 24 MiB by several threads."""
    source = lib.fresh("long")
    rng = random.Random("long")
    values = array.array("f", (rng.gauss(0, 1) for _ in range(1 << 16)))
    values = (values * 130)[:8_000_003]
    values[7_999_999] = float("nan")
    head = json.dumps({"w": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, 4 * len(values)]}}).encode()
    (source / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + values.tobytes())
    with lib.mount(source) as m:
        m.settled()
        got = json.loads(read(m.at / "latest" / "stats" / "w.json"))
        equal(got, told(source, "-j", "3", cache=lib.fresh("long-cache"))["w"], "w")
        equal(got["first_nan"], "[7999999]", "the first NaN")


def known_statistics_are_in_index_jsonl():
    """Those that dcpfs stats kept, and those that the mount measured itself; which stats then finds."""
    cache = lib.fresh("measured-cache")
    told(SOURCE, "step-20", cache=cache)
    with lib.mount(SOURCE, cache=cache) as m:
        m.settled()
        want = told(SOURCE, "step-20", cache=cache)
        lines = {x["key"]: x for x in map(json.loads, read(m.at / "step-20" / "index.jsonl").decode().splitlines())}
        equal({k for k in lines if "stats" in lines[k]}, set(want), "each tensor's line has them")
        for key, row in want.items():
            rest = {k: v for k, v in row.items() if k not in ("name", "tensors", "dtype")}
            equal(lines[key]["stats"], rest, key)
        lines = [json.loads(x) for x in read(m.at / "step-10" / "index.jsonl").decode().splitlines()]
        check(not any("stats" in x for x in lines), "nothing is known of another version")
        for path in sorted((m.at / "step-10" / "stats").iterdir())[:3]:
            read(path)
    with lib.mount(SOURCE, cache=cache) as m:
        m.settled()
        lines = [json.loads(x) for x in read(m.at / "step-10" / "index.jsonl").decode().splitlines()]
        equal(sum("stats" in x for x in lines), 3, "what the mount measured is kept")


def listing_reads_no_tensor():
    """ls -l and find say sizes without reading what may be terabytes."""
    with lib.mount(SOURCE, cache=lib.fresh("measured-list")) as m:
        m.settled()
        before = asked(m)
        ok("ls", "-lR", m.at / "step-10" / "stats")
        ok("find", m.at / "step-10" / "stats", "-size", "+0")
        equal(asked(m), before, "reads of tensors")
        lines = [json.loads(x) for x in read(m.at / "step-10" / "index.jsonl").decode().splitlines()]
        check(not any("stats" in x for x in lines), "nothing was measured")


def unreadable_tensors_fail_with_a_reason():
    """As its other files do: EIO, and errors.json says why."""
    source = lib.copy(SOURCE, lib.fresh("measured-broken") / "ckpt")
    for f in (source / "step-10").glob("*.distcp"):
        with open(f, "r+b") as g:
            g.truncate(1500)
    with lib.mount(source) as m:
        m.settled()
        index = m.index("step-10")
        bad = [t for t in index["tensors"].values() if t["error"]]
        check(bad, "some are broken")
        path = m.at / "step-10" / "stats" / (bad[0]["files"]["raw"][4:-4] + ".json")
        lib.fails("EIO", read, path)
        check(any(e["key"] == bad[0]["key"] and e["error"] for e in m.control("errors.json")), "errors.json has the key")


def reading_is_given_up():
    """A tensor that takes hours to read, by a program that is interrupted, and by the end of the mount."""
    source = lib.fresh("huge")
    size = 1 << 40
    head = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with open(source / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + size)
    with lib.mount(source) as m:
        m.settled()

        def start():
            program = subprocess.Popen(["cat", m.at / "latest" / "stats" / "w.json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            before = asked(m)
            lib.wait(lambda: asked(m) > before + 10, "the tensor is read")
            return program

        program = start()
        program.send_signal(signal.SIGINT)
        lib.wait(lambda: program.poll() is not None, "the interrupted program ends")
        program = start()
        os.kill(m.pid, signal.SIGTERM)
        lib.wait(lambda: not m.running(), "the mount ends")
        lib.wait(lambda: program.poll() is not None, "the program ends with it")


def measuring_keeps_no_request_waiting():
    """More programs than the mount has workers ask for tensors that take minutes: others are served, and each can be interrupted."""
    source = lib.fresh("many")
    size, n = 1 << 37, 80  # a file of ext4 has at most 16 TiB
    head = {f"w{i}": {"dtype": "F32", "shape": [size // 4], "data_offsets": [size * i, size * (i + 1)]} for i in range(n)}
    head["small"] = {"dtype": "F32", "shape": [2], "data_offsets": [size * n, size * n + 8]}
    head = json.dumps(head).encode()
    with open(source / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + size * n + 8)
    with lib.mount(source) as m:
        m.settled()
        base = m.at / "latest" / "stats"
        known = json.loads(read(base / "small.json"))
        before = asked(m)
        programs = [subprocess.Popen(["cat", base / f"w{i}.json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for i in range(n)]
        lib.wait(lambda: asked(m) > before + 10, "some are read")
        lib.wait(lambda: len(os.listdir(f"/proc/{m.pid}/task")) < n // 2, "what waits for its turn holds no thread")
        for verb in ("ls", "-lR", m.at / "latest"), ("cat", m.at / "latest" / "raw" / "small.bin"), ("ls", m.at):
            equal(subprocess.run(verb, stdout=subprocess.DEVNULL, timeout=lib.PATIENCE).returncode, 0, f"{verb[0]} meanwhile")
        equal(json.loads(read(base / "small.json")), known, "statistics that are known are served meanwhile")
        for program in reversed(programs[n // 2:]):  # most wait for their turn
            program.send_signal(signal.SIGINT)
        lib.wait(lambda: all(p.poll() is not None for p in programs[n // 2:]), "interrupted programs end")
        check(all(p.poll() is None for p in programs[:n // 2]), "the others go on")
        os.kill(m.pid, signal.SIGTERM)
        lib.wait(lambda: not m.running(), "the mount ends")
        lib.wait(lambda: all(p.poll() is not None for p in programs), "the programs end with it")


lib.main(files_say_what_stats_prints, long_tensors_are_measured_alike, known_statistics_are_in_index_jsonl,
         listing_reads_no_tensor, unreadable_tensors_fail_with_a_reason, reading_is_given_up,
         measuring_keeps_no_request_waiting)
