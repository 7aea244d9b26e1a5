#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs report: the page is one file, its numbers are those of ls, index, stats, du and diff, and foreign names are only text."""
import json
import os
import re
import struct

from cli import BAD, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run, write  # noqa: F401
from page import Page, has_policy, names_elsewhere


def page(*args, code=OK):
    got = run("report", *args)
    equal(got.returncode, code, f"report {args}: {got.stderr.decode()}")
    text = got.stdout.decode("utf-8")
    p = Page(text)
    equal((p.open, p.away, p.handlers), ([], [], []), f"report {args}: what is open, elsewhere, or runs on an event")
    equal(len(p.scripts), 2, f"report {args}: scripts")
    check(not names_elsewhere(text), "names something elsewhere")
    check(has_policy(p), "no policy")
    p.text, p.data = text, json.loads(p.scripts[0])
    return p


def numbers_are_those_of_other_verbs():
    for name, source in ("fsdp", GOLDEN / "dcp-fsdp2" / "ckpt"), ("llama", GOLDEN / "hf-llama" / "ckpt"), ("paddle", GOLDEN / "paddle-dist-32" / "ckpt"):
        if not source.exists():
            source = source.parent
        got = page("--stats", source).data
        version = got["version"]
        rows = data("ls", "--json", source, version)["tensors"]
        equal([{k: t[k] for k in ("key", "dtype", "shape", "elements", "nbytes")} for t in got["tensors"]],
              sorted(({k: t[k] for k in ("key", "dtype", "shape", "elements", "nbytes")} for t in rows), key=lambda t: t["key"].encode()), f"{name}: ls")
        index = [i for i in data("index", "--json", source) if i["version"] == version][0]
        equal(got["index"], {k: index[k] for k in got["index"]}, f"{name}: index")
        equal(got["stats"], data("stats", "--json", source, version), f"{name}: stats")
        du = {f["name"]: (f["tensors"], f["nbytes"]) for f in data("du", "--by", "file", "--json", source, version)}
        equal({f["name"]: (f["tensors"], f["nbytes"]) for f in got["files"] if f["tensors"]}, du, f"{name}: du --by file")
        for i, f in enumerate(got["files"]):
            equal(f["nbytes"], sum(n for t in got["tensors"] for at, n in t["parts"] if at == i), f"{name}: parts of {f['name']}")


def changes_are_those_of_diff():
    source = GOLDEN / "dcp-fsdp2" / "ckpt"
    p = page("--against", "10", source, "20")
    want = [r for r in json.loads(run("diff", "--json", source, "10", "20").stdout) if r["state"] != "equal" and r["kind"] == "tensor"]
    equal((p.data["against"]["version"], p.data["against"]["rows"]), ("step-10", want), "diff")
    drawing = run("diff", "--svg", source, "10", "20").stdout.decode()
    check(drawing in p.text, "the strip is not that of diff --svg")
    fails(NO, "no version", "report", "--against", "nope", source)


def statistics_are_read_on_request_only():
    top = SCRATCH / "stats"
    write(top / "model.safetensors", {"w": ("F32", [2], struct.pack("<2f", 1, 2)), "v": ("F32", [1], struct.pack("<f", 3))})
    os.utime(top / "model.safetensors", (1e9, 1e9))
    equal(page(top).data["stats"], [], "nothing is kept")
    data("stats", "--json", "--keys", "w", top)
    equal([s["name"] for s in page(top).data["stats"]], ["w"], "what stats has kept")
    equal([s["name"] for s in page("--stats", top).data["stats"]], ["v", "w"], "--stats")
    equal([s["name"] for s in page(top).data["stats"]], ["v", "w"], "is kept, too")
    equal([t["key"] for t in page("--keys", "v", top).data["tensors"]], ["v"], "--keys")


def names_are_only_text():
    bad = ["</script><script>alert(1)</script>", "<!--<script>", "a\u202egnp.exe", "\"><img src=x onerror=alert(1)>", "tab\there\nnewline", "'\"\\`",
           "__proto__", "]]>", "&lt;b&gt;", "\u2028\u2029", "nul\0nul", "</style>", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "<svg/onload=alert(1)>"]
    for step, end in (1, 1), (2, 2):
        write(SCRATCH / "bad" / f"step-{step}" / "model.safetensors", {k: ("F32", [1], struct.pack("<f", end)) for k in bad})
    top = SCRATCH / "bad"
    keys = [t["key"] for t in data("ls", "--json", top, "2")["tensors"]]
    p = page("--stats", "--against", "1", top)
    equal(sorted(t["key"] for t in p.data["tensors"]), sorted(keys), "keys are as ls has them")
    equal({t for t, _ in p.seen} - {"html", "head", "meta", "title", "style", "body", "h1", "h2", "dl", "nav", "div", "p", "input", "span", "script", "svg", "rect", "text"},
          set(), "elements that the page has not")
    for c in "\u202e", "\u2028", "\0":
        check(c not in p.text.split("<script type")[0] and c not in p.scripts[1], f"{c!r} is in the page")
    check("<" not in p.scripts[0], "JSON with a <")


def files_are_kept_from_harm():
    top, out = SCRATCH / "out" / "in", SCRATCH / "page.html"
    write(top / "model.safetensors", {"w": ("F32", [1], bytes(4))})
    equal(run("report", top, "-o", out).returncode, OK, "-o")
    first = out.read_bytes()
    equal(run("report", top, "-o", out).returncode, OK, "again")
    equal(out.read_bytes(), first, "the same page")
    out.write_text("mine", encoding="utf-8")
    fails(USAGE, "is not replaced", "report", top, "-o", out)
    equal(out.read_text(encoding="utf-8"), "mine", "another file")
    check(run("report", top, "-o", top / "page.html").returncode == USAGE, "a page in the source")
    fails(NO, "nope", "report", top, "-o", SCRATCH / "lost.html", "--against", "nope")
    check(not (SCRATCH / "lost.html").exists(), "a page without the version that was asked for")
    os.chmod(top / "model.safetensors", 0o600)
    private = SCRATCH / "private.html"
    equal(run("report", top, "-o", private).returncode, OK, "of a private source")
    equal(private.stat().st_mode & 0o077, 0, "the page of a private source")
    raw = (top / "model.safetensors").read_bytes()
    (top / "model.safetensors").write_bytes(raw[:-2])
    got = run("report", "--stats", top)
    check(got.returncode in (BAD, ENV), f"a cut file: {got.returncode}")


def many_keys_fit():
    top = SCRATCH / "many"
    write(top / "model.safetensors", {f"layers.{i // 10}.part{i % 10}.weight": ("F32", [1], bytes(4)) for i in range(20000)})
    p = page(top)
    equal(len(p.data["tensors"]), 20000, "tensors")
    check(len(p.seen) < 100, f"{len(p.seen)} elements: rows are made as they come into sight")


numbers_are_those_of_other_verbs()
changes_are_those_of_diff()
statistics_are_read_on_request_only()
names_are_only_text()
files_are_kept_from_harm()
many_keys_fit()
finish()
