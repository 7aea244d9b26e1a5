# SPDX-License-Identifier: Apache-2.0
"""The root's other names: tags/ as the source has them, by-key/ for one tensor over time."""
import contextlib
import os
import shutil

import arrays
import lib
from lib import case, check, equal, fails, mount, read


def save(source, version, keys, shift=0):
    """A version whose tensors differ by @shift from those of another."""
    tensors = {k: ("U8", [6, 4], 0, bytes((i + shift) % 256 for i in range(24))) for k in keys}
    arrays.write_sharded(aside := lib.fresh("aside") / version, tensors, 2)
    os.rename(aside, source / version)  # at once: a mount that sees one of its files alone reads it twice


def by_key_shows_all_versions():
    source = lib.fresh("time")
    save(source, "step-9", ["a", "b/c"])
    save(source, "step-10", ["a", "b/c", "only.10"], 1)
    save(source, "step-11", ["a"], 2)
    with mount(source) as m:
        m.settled()
        at = m.at / "by-key"
        equal(sorted(os.listdir(at)), ["a", "b%2Fc", "only.10"], "every key, once")
        equal(os.listdir(at / "a"), ["step-9.npy", "step-10.npy", "step-11.npy"], "versions in order")
        equal(os.listdir(at / "only.10"), ["step-10.npy"], "where it is")
        for i, v in enumerate(["step-9", "step-10", "step-11"]):
            case(v)
            link = at / "a" / f"{v}.npy"
            equal(os.readlink(link), f"../../{v}/npy/a.npy", "where it leads")
            equal(os.lstat(link).st_size, len(os.readlink(link)), "size of the link")
            equal(arrays.parse_npy(read(link))[2], bytes((k + i) % 256 for k in range(24)), "numbers")
        equal(read(at / "b%2Fc" / "step-9.npy"), read(m.at / "step-9" / "npy" / "b%2Fc.npy"), "an escaped name")
        for name in ("b", "b/c", "", "only.1"):
            case(name)
            if name:
                fails("ENOENT ENOTDIR", os.stat, at / name)
        for name in ("step-11.npy", "step-10.bin", "step-10", "latest.npy", ".npy"):
            fails("ENOENT", os.lstat, at / "only.10" / name)
        case("a version comes and goes")
        save(source, "step-12", ["a", "new"], 3)
        lib.wait(lambda: "new" in os.listdir(at), "its key appears", lib.APPEARS)
        equal(os.listdir(at / "new"), ["step-12.npy"], "the new key")
        lib.ok("rm", "-r", source / "step-12")
        lib.wait(lambda: "new" not in os.listdir(at), "its key goes", lib.APPEARS)
        fails("ENOENT ESTALE", os.listdir, at / "new")


def many_keys_are_listed_once():
    """More than one listing's worth; each once, and found by name."""
    source = lib.fresh("many")
    keys = [f"layers.{i}.weight" for i in range(3000)]
    for v in ("step-1", "step-2"):
        tensors = {k: ("U8", [2], 0, b"xy") for k in keys}
        arrays.write_sharded(source / v, tensors, 1)
    with mount(source) as m:
        m.settled()
        got = os.listdir(m.at / "by-key")
        equal(len(got), 3000, "entries")
        equal(sorted(got), sorted(keys), "names")
        for k in keys[::500]:
            equal(os.listdir(m.at / "by-key" / k), ["step-1.npy", "step-2.npy"], k)


def keys_are_read_once_a_version():
    """Keys are read once a version, whenever it was opened; all of them again only when one leaves."""
    source = lib.fresh("grows")
    for n in range(6):
        save(source, f"step-{n}", ["a", f"only{n}"], n)
    with mount(source) as m:
        m.settled()
        os.listdir(m.at / "by-key")
        lib.equal(m.stats()["key_scans"], 6, "versions read")
        for n in range(6, 10):
            save(source, f"step-{n}", ["a", f"only{n}"], n)
            lib.wait(lambda: m.latest() == f"step-{n}", "it is opened")
            equal(sorted(os.listdir(m.at / "by-key")), ["a", *(f"only{k}" for k in range(n + 1))], "keys")
            equal(read(m.at / "by-key" / f"only{n}" / f"step-{n}.npy"), read(m.at / f"step-{n}" / "npy" / f"only{n}.npy"),
                  "its own key")
        lib.equal(m.stats()["key_scans"], 10, "versions read after four more")
        shutil.rmtree(source / "step-0")
        lib.wait(lambda: "only0" not in os.listdir(m.at / "by-key"), "the key goes with its version")


def tags_of_the_source_are_links():
    source = lib.fresh("tags")
    for n in (5, 10):
        save(source, f"iter_{n:07}", ["a"], n)
    (source / "latest_checkpointed_iteration.txt").write_text("5\n", encoding="ascii")
    (source / "best").symlink_to("iter_0000010")
    (source / "nowhere").symlink_to("iter_0000099")
    with mount(source) as m:
        m.settled()
        at = m.at / "tags"
        equal(sorted(os.listdir(at)), ["best", "latest_checkpointed_iteration.txt"], "tags")
        equal(os.readlink(at / "best"), "../iter_0000010", "a link of the source")
        equal(os.readlink(at / "latest_checkpointed_iteration.txt"), "../iter_0000005", "a file of the source")
        equal(read(at / "best" / "raw" / "a.bin"), read(m.at / "iter_0000010" / "raw" / "a.bin"), "through a tag")
        fails("ENOENT", os.lstat, at / "worst")
        libc, entry = lib.directory_calls()
        d, order = libc.opendir(os.fsencode(at)), []
        while (name := entry(d)) is not None:
            order.append((libc.telldir(d), name))
        for (place, _), (_, behind) in zip(order, order[1:]):
            libc.seekdir(d, place)
            equal(entry(d), behind, f"name behind position {place}")
        libc.closedir(d)
        equal(m.versions(), ["iter_0000005", "iter_0000010"], "tags are no versions")
        case("a tag moves")
        (source / "latest_checkpointed_iteration.txt").write_text("10\n", encoding="ascii")

        def leads():  # nowhere while the file is empty, as it may be seen
            with contextlib.suppress(FileNotFoundError):
                return os.readlink(at / "latest_checkpointed_iteration.txt")
        lib.wait(lambda: leads() == "../iter_0000010", "it moves", lib.APPEARS)


def taken_names_are_changed():
    source = lib.fresh("taken")
    for name in ("latest", "tags", "step-1"):
        save(source, name, ["a"])
    with mount(source) as m:
        m.settled()
        equal(m.versions(), ["latest@safetensors", "step-1", "tags@safetensors"], "versions called like our own")
        check(os.path.isdir(m.at / "tags"), "tags/ is ours")


def sidecars_are_shown_unchanged():
    """Files beside the tensors are shown as they are."""
    name = "hf-llama"
    source, _ = lib.golden(name)
    with mount(source) as m:
        m.settled()
        seen = 0
        for version in m.versions():
            at, real = m.at / version / "files", source / version
            for shown in os.listdir(at):
                case(f"{version} {shown}")
                path = real / shown.replace("%2F", "/")
                equal(read(at / shown), read(path), "bytes")
                equal(os.stat(at / shown).st_size, os.stat(path).st_size, "size")
                seen += 1
            for want in ("config.json", "tokenizer.json"):
                equal((at / want).exists(), (real / want).exists(), f"{version}: {want}")
            fails("ENOENT", os.stat, at / "gone.json")
        check(seen > 1, f"only {seen} sidecars")
    source = lib.fresh("beside")
    save(source, "step-1", ["a"])
    (source / "step-1" / "config.json").write_text("{}", encoding="ascii")
    with mount(source) as m:
        m.settled()
        path = m.at / "step-1" / "files" / "config.json"
        equal(read(path), b"{}", "before")
        (source / "step-1" / "config.json").write_text('{"a": 1}', encoding="ascii")
        lib.wait(lambda: lib.outcome(m.at / "step-1" / "files" / "config.json")[0] == b'{"a": 1}', "a changed sidecar",
                 lib.APPEARS)


def texts_of_every_family_are_shown():
    """Whatever the family: texts in the version's directory and below it, but what leads out of it."""
    fsdp, _ = lib.golden("dcp-fsdp2")
    source = lib.fresh("beside")
    lib.copy(fsdp / "step-10", source / "step-10")
    (source / "secret.json").write_text("no", encoding="ascii")
    at = source / "step-10"
    for name in ("config.json", "1_Pooling/config.json", "1_Pooling/deep/a.txt", "1_Pooling/deep/b.txt",
                 ".hidden.json", "checkpoint-5/config.json", "data.bin"):
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(name, encoding="ascii")
    (at / "out.json").symlink_to("../secret.json")
    (at / "away").symlink_to("..")
    with mount(source) as m:
        m.settled()
        files = m.at / "step-10" / "files"
        equal(sorted(os.listdir(files)), ["1_Pooling", "config.json"], "files/")
        equal(read(files / "1_Pooling" / "config.json"), b"1_Pooling/config.json", "one in a directory")
        equal(sorted(str(p.relative_to(files)) for p in files.rglob("*")),
              ["1_Pooling", "1_Pooling/config.json", "1_Pooling/deep", "1_Pooling/deep/a.txt", "1_Pooling/deep/b.txt",
               "config.json"], "all of them")
        equal(os.stat(files / "1_Pooling" / "deep" / "..").st_ino, os.stat(files / "1_Pooling").st_ino, "the way back")
        libc, entry = lib.directory_calls()
        for at in (m.at / "step-10", files, files / "1_Pooling", files / "1_Pooling" / "deep"):
            d = libc.opendir(os.fsencode(at))
            equal([entry(d, inode=True) for _ in range(2)], [(b".", os.stat(at).st_ino), (b"..", os.stat(at.parent).st_ino)],
                  f"what {at.name} lists first")
            libc.closedir(d)
        fails("ENOENT", os.stat, files / "1_Pooling" / "gone.json")


lib.main(texts_of_every_family_are_shown, sidecars_are_shown_unchanged, by_key_shows_all_versions, many_keys_are_listed_once,
         keys_are_read_once_a_version, tags_of_the_source_are_links, taken_names_are_changed)
