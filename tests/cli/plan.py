#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs plan: its numbers against a planner of a few lines here, its drawings as XML, its refusals.

The planner here looks at every element: pieces from `show --json`, cuts computed by torch's rule.
"""
import itertools
import json
import math
import os
import pathlib
import pty
import re
import shutil
import xml.etree.ElementTree as ET

import page
from cli import BAD, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run

SOURCE = GOLDEN / "dcp-tp-fsdp" / "ckpt"


def layout(name, text):
    path = SCRATCH / name
    path.write_text(text)
    return path


def tensors(source, version):
    names = data("ls", "--json", source, version)
    return [data("show", "--json", "--version", version, source, t["key"]) for t in names["tensors"]]


def places(t):
    """(file, offset) of the first byte of each element of a tensor, by its index."""
    size = t["nbytes"] // max(1, math.prod(t["shape"]))
    out = {}
    for p in t["pieces"]:
        if "strides" in p or "elements" in p or "filter" in p:
            return None, size
        at = p["offset"]
        for index in itertools.product(*(range(a, b) for a, b in p["region"])):
            out[index] = (p["file"], at)
            at += size
    return out, size


def chunk(n, parts, i):
    c = -(-n // parts)
    return range(min(n, c * i), min(n, c * (i + 1)))


def holds(index, shape, ranks, rank, dim):
    return len(shape) <= dim or index[dim] in chunk(shape[dim], ranks, rank)


def numbers_agree_with_a_reference(source, version, ranks, dim):
    """Every number of the plan for dim<k>x<N>, element by element."""
    what = f"{version} on dim{dim}x{ranks}"
    plan = data("plan", source, version, "--layout", f"dim{dim}x{ranks}", "--json")
    told = [(t, *places(t)) for t in tensors(source, version)]
    if not check(all(at is not None for _, at, _ in told), f"{what}: a tensor that this test cannot place"):
        return
    names, first, reader = {}, 0, {}
    for f in plan["files"]:  # whose stripes are dealt to the ranks, one file after the other
        names[f["file"]] = first
        first += -(-f["size"] // plan["stripe"])
    needed, sent, needs, blocks = set(), {}, [0] * ranks, {}
    for t, at, size in told:
        for index, (file, offset) in at.items():
            for rank in range(ranks):
                if not holds(index, t["shape"], ranks, rank, dim):
                    continue
                for byte in range(offset, offset + size):
                    needed.add((file, byte))
                    stripe = names[file] + byte // plan["stripe"]
                    blocks.setdefault(stripe, [file, set()])[1].add(byte // 4096)
                    pair = stripe % ranks, rank
                    sent[pair] = sent.get(pair, 0) + 1
                    needs[rank] += 1
    reads, sizes = [0] * ranks, {f["file"]: f["size"] for f in plan["files"]}
    for stripe, (file, some) in blocks.items():
        for b in list(some):  # holes of two blocks are read along
            some |= {b + 1, b + 2} if b + 3 in some else {b + 1} if b + 2 in some else set()
        reads[stripe % ranks] += sum(min(4096, sizes[file] - b * 4096) for b in some)
    equal([r["reads"] for r in plan["ranks"]], reads, f"{what}: reads")
    equal(plan["unique"], len(needed), f"{what}: unique")
    equal([r["needs"] for r in plan["ranks"]], needs, f"{what}: needs")
    equal([r["keeps"] for r in plan["ranks"]], [sent.get((r, r), 0) for r in range(ranks)], f"{what}: keeps")
    equal({(a, b): n for a, b, n in plan["exchange"]}, {k: n for k, n in sent.items() if k[0] != k[1]},
          f"{what}: exchange")
    equal([r["receives"] + r["keeps"] for r in plan["ranks"]], needs, f"{what}: receives")
    equal(plan["needed"], sum(needs), f"{what}: needed")
    equal(plan["sent"], sum(n for (a, b), n in sent.items() if a != b), f"{what}: sent")
    equal(plan["staging"], max(0, *(r["reads"] - r["keeps"] for r in plan["ranks"])), f"{what}: staging")
    check(abs(plan["amplification"]["alone"] - sum(needs) / len(needed)) < 1e-9, f"{what}: alone")
    check(abs(plan["amplification"]["together"] - sum(reads) / len(needed)) < 1e-9, f"{what}: together")
    one(source, version, f"dim{dim}x{ranks}", plan, ranks // 2)


def one(source, version, name, plan, rank):
    """--rank says the same as the whole plan."""
    mine = data("plan", source, version, "--layout", name, "--rank", str(rank), "--json")
    whole = plan["ranks"][rank]
    for member in ("rank", "needs", "reads", "keeps", "sends", "receives"):
        equal(mine[member], whole[member], f"{name}: rank {rank}: {member}")
    equal(sum(p["nbytes"] for p in mine["part"]), whole["reads"], f"{name}: rank {rank}: part")
    equal(mine["sends_to"], [[b, n] for a, b, n in plan["exchange"] if a == rank], f"{name}: rank {rank}: sends")
    equal(mine["receives_from"], [[a, n] for a, b, n in plan["exchange"] if b == rank], f"{name}: rank {rank}: receives")
    text = run("plan", source, version, "--layout", name, "--rank", str(rank)).stdout.decode()
    check(f"rank {rank} of {len(plan['ranks'])} (dim={rank}) of {name}" in text, f"{name}: --rank as text: {text[:80]}")
    for _, n in mine["sends_to"]:
        check(f"{n:,}" in text, f"{name}: --rank as text does not tell {n:,}")


def json_has_the_promised_members():
    """The members that the manual promises, and nothing else."""
    plan = data("plan", SOURCE, "tp", "--layout", "fsdp4", "--json", "--simulate", "gpus=2")
    equal(list(plan), "dcpfs version format layout from amplification needed sent staging simulated digest group way stripe "
          "tensors kinds unique extents files ranks exchange left_out ignored".split(), "members")
    equal(plan["layout"], {"name": "fsdp4", "ranks": 4, "mesh": {"fsdp": 4}}, "layout")
    equal([plan["dcpfs"], plan["version"], plan["format"], plan["from"], plan["left_out"]],
          [1, "tp", "torch-dcp", None, []], "head")
    equal(list(plan["simulated"]), "nodes gpus disk store net ways".split(), "members of simulated")
    equal([w["way"] for w in plan["simulated"]["ways"]],
          ["each rank for itself", "each node for itself", "together"], "ways")
    equal(list(plan["ranks"][0]), "rank needs reads keeps sends receives".split(), "members of a rank")
    equal(sum(f["read"] for f in plan["files"]), plan["unique"], "bytes of files")
    again = data("plan", SOURCE / "tp", "--layout", "dim0x4", "--json")
    equal(again["unique"], plan["unique"], "the same version as a source of its own")
    check(again["digest"] != plan["digest"], "another layout has the same digest")
    equal(data("plan", SOURCE, "tp", "--layout", "fsdp4", "--json")["digest"], plan["digest"], "the digest, again")
    table = run("plan", SOURCE, "tp", "--layout", "fsdp4").stdout.decode().split("\nRANK ")[1].splitlines()[1:]
    parts = [data("plan", SOURCE, "tp", "--layout", "fsdp4", "--rank", str(r), "--json")["part"] for r in range(4)]
    equal([re.split(" {2,}", line.strip())[5] for line in table], [str(len({p["file"] for p in part})) for part in parts],
          "FILES of each rank")


def held_tensors_are_not_read():
    """Ranks that hold everything keep it; others get what they lack and nothing is read."""
    same = data("plan", SOURCE, "tp", "--layout", "fsdp4", "--from-layout", "fsdp4", "--json")
    equal([same["sent"], same["unique"], same["exchange"]], [0, 0, []], "the same layout on both sides")
    equal(same["from"]["name"], "fsdp4", "from")
    half = layout("half.dcpl", "mesh dp=4\n* only(dp=0-1) replicate\n")
    all4 = layout("all.dcpl", "mesh dp=4\n* replicate\n")
    plan = data("plan", SOURCE, "tp", "--layout", all4, "--from-layout", half, "--json")
    needs = plan["ranks"][0]["needs"]
    equal(plan["exchange"], [[0, 2, needs], [1, 3, needs]], "two hold it, two do not")
    fails(BAD, "that no rank of half holds", "plan", SOURCE, "tp", "--layout", all4,
          "--from-layout", layout("half.dcpl", "mesh dp=4\n* only(dp=1) shard(0, optional)\n"))


def ways_to_read_are_planned():
    """Each way to read; what is left out by --keys is in none."""
    plans = {way: data("plan", SOURCE, "tp", "--layout", "dim0x4", "--exchange", way, "--node", "2", "--json")
             for way in ("all", "node", "never")}
    equal([plans[w]["way"] for w in plans], list(plans), "ways")
    equal([plans[w]["stripe"] > 0 for w in plans], [True, False, False], "stripes")
    for way, plan in plans.items():
        equal([r["needs"] for r in plan["ranks"]], [r["needs"] for r in plans["all"]["ranks"]], f"{way}: needs")
        equal([r["keeps"] + r["receives"] for r in plan["ranks"]], [r["needs"] for r in plan["ranks"]], f"{way}: receives")
        check(way == "all" or not plan["sent"], f"{way}: messages")
        check(way == "all" or all(a // 2 == b // 2 for a, b, _ in plan["exchange"]), f"{way}: between nodes")
    equal([r["reads"] for r in plans["never"]["ranks"]], [r["needs"] for r in plans["all"]["ranks"]], "never: reads")
    text = run("plan", SOURCE, "tp", "--layout", "dim0x4", "--exchange", "node", "--node", "2").stdout.decode()
    check("are taken from other ranks" in text, text)
    one = data("plan", SOURCE, "tp", "--layout", "fsdp4", "--keys", "model.norm", "--json")
    less = data("plan", SOURCE, "tp", "--layout", "fsdp4", "--skip", "model.norm", "--json")
    equal(one["tensors"] + less["tensors"], plans["all"]["tensors"], "--keys and --skip")
    small = data("plan", SOURCE, "tp", "--layout", "fsdp4", "--staging", "1MiB", "--json")
    check(small["stripe"] < plans["all"]["stripe"], f"--staging: {small['stripe']}")


def broken_keys_are_left_out():
    """What cannot be read is left out and listed; the rest is planned."""
    for name, key, says in (("storage-short", "layer.weight", "its tensor expects 15 elements"),
                            ("past-the-end", "loss", "was the writer interrupted"),
                            ("negative-rows", "layer.weight", "a negative number")):
        plan = data("plan", GOLDEN / "hostile" / name, "--layout", "fsdp2", "--json")
        equal([x["key"] for x in plan["left_out"]], [key], f"{name}: left out")
        check(says in plan["left_out"][0]["error"], f"{name}: {plan['left_out']}")
        check(plan["unique"] > 0, f"{name}: nothing else is planned")
        text = run("plan", GOLDEN / "hostile" / name, "--layout", "fsdp2").stdout.decode()
        check("1 tensor cannot be read and is left out:\n  " + key in text, f"{name}: {text}")
    fails(BAD, "is damaged", "plan", GOLDEN / "hostile" / "cut-metadata", "--layout", "fsdp2")


def times_agree_with_the_manual():
    """The model of the manual, computed again."""
    words = "nodes=2,gpus=2,disk=1MB/s,net=8Mb/s,store=1.5MB/s"
    plan = data("plan", SOURCE, "tp", "--layout", "fsdp4", "--simulate", words, "--json")
    ways = {w["way"]: w for w in plan["simulated"]["ways"]}
    needs = [sum(plan["ranks"][r]["needs"] for r in pair) for pair in ((0, 1), (2, 3))]
    want = max(max(needs) / 1e6, sum(needs) / 1.5e6)
    got = ways["each rank for itself"]
    check(abs(got["reading"] - want) < 1e-12 and got["limit"] == "store", f"each rank for itself: {got}, {want}")
    reads = [sum(plan["ranks"][r]["reads"] for r in pair) for pair in ((0, 1), (2, 3))]
    got = ways["together"]
    check(abs(got["reading"] - max(max(reads) / 1e6, sum(reads) / 1.5e6)) < 1e-12, f"together: {got}")
    check(got["exchange"] > 0 and got["both_at_once"] == max(got["reading"], got["exchange"]), f"together: {got}")
    check(got["one_by_one"] == got["reading"] + got["exchange"], f"together: {got}")
    check(ways["each node for itself"]["reading"] <= ways["each rank for itself"]["reading"], "a node shares its cache")
    text = run("plan", SOURCE, "tp", "--layout", "fsdp4", "--simulate", words).stdout.decode()
    check("On 2 nodes of 2 GPUs, 1.00 MB/s from each disk, 1.00 MB/s of network each way:" in text, text)
    for way in ways.values():
        s = way["reading"]
        spelled = f"{s:.2f} s" if s >= 0.9995 else f"{s * 1e3:.3g} ms" if s >= 0.0009995 else f"{s * 1e6:.3g} us"
        check(re.search(rf"\b{re.escape(spelled)}\b", text), f"{way} is not {spelled}: {text}")
    for word, says in (("node=3", 'knows no "node", nearest is nodes'), ("disk=fast", 'found "fast"'),
                       ("gpus=0", "from 1 to"), ("nodes", "takes name=value"), ("nodes=1,gpus=2", "the layout has 4"),
                       ("net=-3GB/s", "bytes a second"), ("disk=5GB/h", "bytes a second"), ("disk=nan", "bytes a second")):
        fails(USAGE, says, "plan", SOURCE, "tp", "--layout", "fsdp4", "--simulate", word)


def svg(source, rules, name):
    """Titles of what is drawn, and all texts."""
    root = ET.fromstring(run("plan", source, "--layout", layout(name, rules), "--svg", "--key", "w").stdout)
    return ([x.text for x in root.iter("{http://www.w3.org/2000/svg}title")][1:],
            " ".join(x.text for x in root.iter("{http://www.w3.org/2000/svg}text")))


def three_dimensions_are_drawn_as_slices():
    """Of three dimensions that are cut, two are drawn where the other is 0; ranks are told as ranges."""
    source = SCRATCH / "cube.safetensors"
    header = json.dumps({"w": {"dtype": "U8", "shape": [2, 2, 2], "data_offsets": [0, 8]}}).encode()
    source.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    titles, text = svg(source, "mesh a=2 b=2 c=2\n* shard(0)@a shard(1)@b shard(2)@c\n", "cube.dcpl")
    equal(len(titles), 4, f"parts that are drawn: {titles}")
    check("the slice at index 0 of other dimensions" in text, text)
    titles, _ = svg(source, "mesh a=6\n* only(a=0|2-4) replicate\n", "some.dcpl")
    equal([t.split(":")[0] for t in titles], ["ranks 0, 2-4"], "ranks that hold the same")


def drawings_are_well_formed():
    """SVG and HTML are well-formed, hold what they should, and fetch nothing."""
    mesh = layout("mesh.dcpl", "mesh a=2 b=2\n*.bias flat@a\n* shard(0, optional)@a shard(1, optional)@b\n")
    keys = [t["key"] for t in data("ls", "--json", SOURCE, "tp")["tensors"]]
    for key in keys:
        got = run("plan", SOURCE, "tp", "--layout", mesh, "--svg", "--key", key)
        if not equal(got.returncode, OK, f"--svg of {key}: {got.stderr.decode()}"):
            continue
        root = ET.fromstring(got.stdout)
        equal(root.tag, "{http://www.w3.org/2000/svg}svg", f"--svg of {key}")
        titles = [x.text for x in root.iter("{http://www.w3.org/2000/svg}title")]
        equal(titles[0], key, f"--svg of {key}: its title")
        check("prefers-color-scheme: dark" in root.find("{http://www.w3.org/2000/svg}style").text, f"--svg of {key} is dark where the reader wishes")
        ranks = {r for title in titles[1:] for r in re.match(r"ranks? ([-0-9, ]+):", title).group(1).split(", ")}
        check(ranks, f"--svg of {key} shows no ranks")
    text = run("plan", SOURCE, "tp", "--layout", "fsdp4", "--html", "--simulate", "gpus=2").stdout.decode()
    got = page.Page(text)
    check("prefers-color-scheme: dark" in text and "id='search'" in text, "the page is dark where the reader wishes, and has a search")
    equal([t for t, _ in got.seen].count("svg"), 3, "drawings of the page")
    equal((got.open, got.away, got.handlers, len(got.scripts)), ([], [], [], 2), "what is open, elsewhere, or runs on an event; scripts")
    check(page.has_policy(got) and not page.names_elsewhere(text), "the page fetches something")
    check("together" in text.split("<pre>")[1].split("</pre>")[0], "the page has the text")
    ranks = json.loads(got.scripts[0])["ranks"]
    equal([{k: r[k] for k in ("needs", "reads", "keeps", "sends", "receives")} for r in ranks],
          [{k: r[k] for k in ("needs", "reads", "keeps", "sends", "receives")} for r in data("plan", SOURCE, "tp", "--layout", "fsdp4", "--json")["ranks"]],
          "numbers of the page are those of the plan")
    equal((ranks[3]["at"], ranks[3]["from"].split()[1].isdigit()), ("fsdp=3", True), "the place of a rank, and where it reads")


def pages_have_all_ranks():
    """A page has all ranks, goes into a file that is named, and not to a terminal."""
    args = ("plan", SOURCE, "tp", "--layout", "fsdp64")
    ranks = json.loads(page.Page(run(*args, "--html").stdout.decode()).scripts[0])["ranks"]
    equal([r["rank"] for r in ranks], list(range(64)), "the page lists all ranks")
    for word, name in (("--html", "p.html"), ("--svg", "p.svg"), ("--html=", "page")):
        file = SCRATCH / name
        for _ in range(2):  # and again over its own
            got = run(*args, *([word, file] if "=" not in word else [f"{word}{file}"]))
            equal((got.returncode, got.stdout), (OK, b""), f"{word} {name}: {got.stderr}")
        equal(file.read_bytes(), run(*args, word.rstrip("=")).stdout, f"{word} {name}")
        file.write_bytes(b"mine")
        fails(USAGE, "it is not replaced", *args, f"{word.rstrip('=')}={file}")
    fails(USAGE, "which is read", *args, "--html", pathlib.Path(SOURCE) / "p.html")
    for word in ("--html", "--svg"):
        master, slave = pty.openpty()
        got = run(*args, word, stdout=slave)
        os.close(slave)
        os.close(master)
        equal(got.returncode, USAGE, f"{word} to a terminal: {got.stderr}")
        check(b"is a terminal" in got.stderr, f"{word} to a terminal: {got.stderr}")


GOLDEN_TEXT = """\
tp on the 4 ranks of fsdp4

tensors     24 of 10 kinds
needed      10.4 kB by all ranks together
held        by the ranks of dim1x2: nothing is read, 7.30 kB are sent

BYTES A RANK    LEAST     MEAN     MOST  RANK
needs         1.73 kB  2.59 kB  2.88 kB     0
keeps             0 B    762 B  1.59 kB     0
sends             0 B  1.83 kB  3.85 kB     0
receives      1.29 kB  1.83 kB  2.87 kB     2

RANK    NEEDS    KEEPS    SENDS  RECEIVES
   0  2.88 kB  1.59 kB  3.85 kB   1.29 kB
   1  2.87 kB  1.46 kB  3.46 kB   1.42 kB
   2  2.87 kB      0 B      0 B   2.87 kB
   3  1.73 kB      0 B      0 B   1.73 kB
"""
GOLDEN_RANK = """\
rank 3 of 4 (fsdp=3) of fsdp4, tp

needs       1.73 kB (1,728 bytes)
reads       38.7 kB (38,703 bytes)
keeps       0 bytes
sends       3.02 kB (3,020 bytes)
receives    1.73 kB (1,728 bytes)

READS         FROM      TO   BYTES  STRETCHES
__1_0.distcp     0  38,703  38,703          1

RANK  SENDS TO IT  RECEIVES FROM IT
"""


def text_agrees_with_golden_files():
    got = run("plan", SOURCE, "tp", "--layout", "fsdp4", "--from-layout", "dim1x2").stdout.decode()
    equal(got, GOLDEN_TEXT, "the text of a plan")
    got = run("plan", SOURCE, "tp", "--layout", "fsdp4", "--rank", "3").stdout.decode()
    equal(got[:len(GOLDEN_RANK)], GOLDEN_RANK, "the text of a rank")


def text_tells_of_the_layout():
    """Text for people: what it says of a layout is in it."""
    text = run("plan", SOURCE, "tp", "--layout", "fsdp4").stdout.decode()
    for line in ("tp on the 4 ranks of fsdp4", "every rank for itself:", "by stripes of", "BYTES A RANK"):
        check(line in text, f"plan does not say {line!r}: {text}")
    for name, most in (("fsdp4", 4), (layout("norm.dcpl", "mesh a=1\nmodel.norm.* replicate\n* drop\n"), 3)):
        files = [f["file"] for f in data("plan", SOURCE, "tp", "--layout", name, "--json")["files"] if f["read"]]
        said = run("plan", SOURCE, "tp", "--layout", name).stdout.decode()
        check(".metadata" not in files and 1 < len(files) <= most and f" of {len(files)} files\n" in said,
              f"of {name} {files} are read: {said}")
    equal(len(re.findall(r"^ +\d+ .*__\d_0.distcp", text, re.M)), 4, "a line for each rank")
    alike = run("plan", SOURCE, "tp", "--layout", layout("alike.dcpl", "mesh a=3\n* replicate\n")).stdout.decode()
    check(re.search(r"^needs .* 0$", alike, re.M), f"of ranks that need as much the first is named: {alike}")
    narrow = run("plan", SOURCE, "tp", "--layout", "fsdp64", COLUMNS=100).stdout.decode()
    check("24 more ranks" in narrow, "a terminal is given the first ranks only")


def ignored_keys_are_counted():
    """As dcpfs load counts them: a glob that names no path is told."""
    options = ["--layout", "fsdp4", "--ignore-keys", "*norm*", "--ignore-keys", "modle.*"]
    all_of = data("plan", SOURCE, "tp", "--layout", "fsdp4", "--json")
    plan = data("plan", SOURCE, "tp", *options, "--json")
    check(plan["ignored"]["*norm*"] > 0, f"{plan['ignored']}")
    equal(plan["tensors"] + plan["ignored"]["*norm*"], all_of["tensors"], "tensors")
    equal((plan["ignored"]["modle.*"], all_of["ignored"]), (0, {}), "none")
    check("keys by modle.*: no path is called so\n" in run("plan", SOURCE, "tp", *options).stdout.decode(), "in text")


def misuse_is_refused():
    fails(USAGE, "--layout is missing", "plan", SOURCE)
    fails(USAGE, "nearest is fsdp<N>", "plan", SOURCE, "--layout", "fsp4")
    fails(USAGE, "should read fsdp<N>", "plan", SOURCE, "--layout", "fsdp0")
    fails(USAGE, 'no built-in layout "FSDP8", nearest is fsdp<N>', "plan", SOURCE, "--layout", "FSDP8")
    fails(USAGE, "there is no rank 4 of fsdp4, only 0 to 3", "plan", SOURCE, "tp", "--layout", "fsdp4", "--rank", "4")
    fails(USAGE, "--rank takes a number", "plan", SOURCE, "tp", "--layout", "fsdp4", "--rank", "x")
    fails(USAGE, "do not go together", "plan", SOURCE, "--layout", "fsdp4", "--json", "--svg")
    fails(USAGE, "--rank is for text", "plan", SOURCE, "--layout", "fsdp4", "--rank", "0", "--svg")
    for says, options in (("add --svg or --html", ["--key", "model.tok.weight"]), ("add --svg or", ["--key", "x", "--json"]),
                          ("leave --rank out", ["--simulate", "gpus=2", "--rank", "0"]),
                          ("take --html", ["--simulate", "gpus=2", "--svg"]),
                          ("leave one of them out", ["--io", "direct", "--from-layout", "fsdp2"]),
                          ("needs --node N", ["--exchange", "node"]), ("is for --exchange never", ["--io", "direct"]),
                          ("--device is for", ["--device", "cuda"]), ("--device takes", ["--device", "gpu", "--exchange", "never"])):
        fails(USAGE, says, "plan", SOURCE, "tp", "--layout", "fsdp4", *options)
    equal(run("plan", SOURCE, "tp", "--layout", "fsdp4", "--device", "host").returncode, OK, "--device host is no device")
    fails(NO, "Nearest:", "plan", SOURCE, "tp", "--layout", "fsdp4", "--svg", "--key", "model.tok.weigh")
    fails(NO, "no version", "plan", SOURCE, "nine", "--layout", "fsdp4")
    bad = layout("bad.dcpl", "mesh a=2\n*.bias replicate\n* shrad(0)\n")
    fails(BAD, 'bad.dcpl:3: ', "plan", SOURCE, "tp", "--layout", bad)
    fails(BAD, "shard", "plan", SOURCE, "tp", "--layout", bad)
    cannot = layout("cannot.dcpl", "mesh a=4 b=2\n* shard(7)@b\n")
    fails(BAD, "cannot:2: key ", "plan", SOURCE, "tp", "--layout", cannot)
    fails(BAD, "rank 0: shard(7)@b: the tensor has", "plan", SOURCE, "tp", "--layout", cannot)
    layout("mine.dcpl", "mesh dp=2\n* replicate\n")
    fails(USAGE, "has no dimension", "plan", SOURCE, "tp", "--layout",
          f"mesh:tp4:{layout('named.dcpl', 'mesh dp=2' + chr(10) + '* shard(0, optional)@dp' + chr(10))}")
    equal(data("plan", SOURCE, "tp", "--layout", f"mesh:dp3:{SCRATCH / 'mine.dcpl'}", "--json")["layout"]["ranks"], 3,
          "a file on another mesh")


def mount_and_plan_refuse_alike():
    """A layout file that is missing, or is none, ends mount and plan alike."""
    for code, says, path in ((ENV, 'No such file or directory, nearest is "wrong.dcpl"', SCRATCH / "worng.dcpl"),
                             (BAD, f"{SCRATCH}/wrong.dcpl:2: ", layout("wrong.dcpl", "mesh a=2\n* shrad(0)\n")),
                             (BAD, "a file of regions, which only dcpfs load takes", layout("some.regions", "0 model.norm.weight\n")),
                             (BAD, "not a file", SCRATCH / "mnt"), (BAD, "not a name", SCRATCH / ".dcpl")):
        (SCRATCH / "mnt").mkdir(exist_ok=True)
        fails(code, says, "plan", SOURCE, "tp", "--layout", path)
        fails(code, says, "mount", SOURCE, SCRATCH / "mnt", "--layout", path)


def layout_files_are_found_beside():
    """A *.dcpl lies in SOURCE, where its versions lie, or beside SOURCE where that is a version."""
    run_dir = SCRATCH / "job" / "run"
    shutil.copytree(SOURCE / "tp", run_dir / "step-3")
    shutil.copytree(SOURCE / "tp", SCRATCH / "job" / "placed" / "checkpoints" / "step-3")
    shutil.copytree(GOLDEN / "hf-llama" / "ckpt" / "dtypes", SCRATCH / "job" / "hf")
    for name, ranks in (("run/mine", 2), ("run/step-3/both", 3), ("run/both", 4), ("above", 5), ("hf/x", 6),
                        ("placed/checkpoints/deep", 7), ("placed/top", 2), ("placed/deeper", 3)):
        layout(f"job/{name}.dcpl", f"mesh dp={ranks}\n* shard(0, optional)\n")
    (run_dir / "out.dcpl").symlink_to("../above.dcpl")
    (run_dir / "in.dcpl").symlink_to("mine.dcpl")
    (run_dir / "dir.dcpl").mkdir()

    def ranks(source, name):
        got = run("plan", SCRATCH / "job" / source, "--layout", name, "--json")
        return json.loads(got.stdout)["layout"]["ranks"] if got.returncode == OK else got.stderr.decode()
    for source, name, want in (("run", "mine", 2), ("run/step-3", "mine", 2), ("run/step-3", "both", 3), ("run", "both", 4),
                               ("run/step-3", "in", 2), ("hf/model.safetensors", "x", 6), ("placed", "deep", 7),
                               ("placed", "top", 2), ("placed/checkpoints", "deep", 7),
                               ("run/step-3", "mesh:dp8:mine", 8)):
        equal(ranks(source, name), want, f"ranks of {name} of {source}")
    for source, name, says in (("run", "above", 'no built-in layout "above"'), ("run/step-3", "out", "out.dcpl: leads outside"),
                               ("run", "dir", "dir.dcpl is left out"), ("placed/checkpoints/step-3", "top", "no built-in"),
                               ("placed/checkpoints", "top", "no built-in"),
                               ("run", "mien", 'nearest is "mine"'), ("run", "MINE", 'nearest is "mine"'),
                               ("run", "mine.dcpl", 'nearest is "mine"'), ("run", "mien.dcpl", 'nearest is "mine"'),
                               ("run", "mesh:dp4:mien", 'nearest is "mine"')):
        check(says in str(ranks(source, name)), f"{name} of {source}: {ranks(source, name)}")


numbers_agree_with_a_reference(SOURCE, "tp", 3, 0)
numbers_agree_with_a_reference(SOURCE, "tp", 4, 1)
json_has_the_promised_members()
held_tensors_are_not_read()
ways_to_read_are_planned()
broken_keys_are_left_out()
times_agree_with_the_manual()
drawings_are_well_formed()
pages_have_all_ranks()
three_dimensions_are_drawn_as_slices()
text_agrees_with_golden_files()
text_tells_of_the_layout()
ignored_keys_are_counted()
misuse_is_refused()
mount_and_plan_refuse_alike()
layout_files_are_found_beside()
finish()
