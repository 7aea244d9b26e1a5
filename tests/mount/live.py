# SPDX-License-Identifier: Apache-2.0
"""What is open while its version changes: ESTALE within 5 s when it is rewritten, served on when it is removed."""
import contextlib
import mmap
import os
import pathlib
import shutil
import signal

import lib
from lib import APPEARS, case, check, equal, errno_of, outcome, sha, wait

FSDP, MANIFEST = lib.golden("dcp-fsdp2")
TORCH, SAVED = lib.golden("torch-save")
KEY = next(k for k, t in sorted(MANIFEST["step-10"]["tensors"].items())
           if t["nbytes"] and "/" not in k and t["sha256"] != MANIFEST["step-20"]["tensors"][k]["sha256"])


def digest_of(step):
    return MANIFEST[step]["tensors"][KEY]["sha256"]


class Held:
    """Everything that can be held of a version: files, a directory, a mapping in a process of its own."""

    def __init__(self, m, version):
        at = m.at / version
        self.link = m.at / "by-key" / KEY / f"{version}.npy"
        self.paths = {"raw": at / "raw" / f"{KEY}.bin", "npy": at / "npy" / f"{KEY}.npy",
                      "index.json": at / "index.json", "README.txt": at / "README.txt",
                      "a rank's": at / "shard" / "fsdp2" / "0" / "raw" / f"{KEY}.bin",
                      "a rank's model": at / "shard" / "fsdp2" / "1" / "model.safetensors", "by key": self.link}
        self.fds = {what: os.open(path, os.O_RDONLY) for what, path in self.paths.items()}
        self.content = {what: os.pread(fd, 1 << 20, 0) for what, fd in self.fds.items()}
        check(all(self.content.values()), "everything reads")
        self.dirs = {name: os.open(at / name, os.O_RDONLY) for name in (".", "npy", "shard/fsdp2/0/raw")}
        self.mapper, self.go, self.said = self.map(self.paths["raw"])

    @staticmethod
    def map(path):
        """A process that reads a mapping, waits for a byte, and reads it again."""
        go, said = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                fd = os.open(path, os.O_RDONLY)
                with mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_READ) as pages:
                    os.write(said[1], pages[:1])
                    os.close(go[1])
                    while os.read(go[0], 1):
                        os.write(said[1], pages[:1])
            finally:
                os._exit(0)
        os.close(go[0])
        os.close(said[1])
        check(os.read(said[0], 1), "the mapping reads")
        return pid, go[1], said[0]

    def faults(self):
        """Does the mapping fault now? (It can be asked only until it does.)"""
        os.write(self.go, b"x")
        if os.read(self.said, 1):
            return False
        return os.WTERMSIG(os.waitpid(self.mapper, 0)[1]) == signal.SIGBUS

    def gone(self):
        """All of it answers ESTALE, soon."""
        for what, fd in self.fds.items():
            wait(lambda: outcome(None, fd)[1] == "ESTALE", f"{what} held open answers ESTALE, {outcome(None, fd)[1]}",
                 APPEARS)
            wait(lambda: errno_of(os.pread, fd, 1, 0) == "ESTALE", f"{what}, a byte that the kernel knew", APPEARS)
        self.dirs_gone()
        wait(self.faults, "the mapping faults", APPEARS)

    def dirs_gone(self):
        for what, fd in self.dirs.items():
            wait(lambda: errno_of(os.listdir, fd) == "ESTALE", f"{what} held open answers ESTALE", APPEARS)

    def served(self):
        """The version left, but no process that has its files open notices, and none opens them again."""
        self.dirs_gone()
        for what, fd in self.fds.items():
            equal(outcome(None, fd), (self.content[what], None), f"{what} held open")
            equal(os.fstat(fd).st_size, len(self.content[what]), f"size of {what}")
            equal(errno_of(os.open, f"/proc/self/fd/{fd}", os.O_RDONLY), "ESTALE", f"{what} opened again")
        check(not self.faults(), "the mapping reads on")

    def close(self):
        for fd in [*self.fds.values(), *self.dirs.values(), self.go, self.said]:
            os.close(fd)
        with contextlib.suppress(ChildProcessError):  # it faulted, and is gone
            os.waitpid(self.mapper, 0)


def replace(source, version, step):
    """As a save over it: each file by rename, the metadata last."""
    for name in sorted(os.listdir(FSDP / step), reverse=True):
        shutil.copyfile(FSDP / step / name, source / f"{name}.tmp")
        os.rename(source / f"{name}.tmp", source / version / name)


def rewrite(source, version, step):
    for name in sorted(os.listdir(FSDP / step), reverse=True):
        shutil.copyfile(FSDP / step / name, source / version / name)


def swap(source, version, step):
    """Committed at the same time, as far as the file system can tell."""
    new = lib.copy(FSDP / step, source / f"tmp-{version}")
    times = os.stat(source / version / ".metadata")
    os.utime(new / ".metadata", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.rename(source / version, lib.fresh("aside") / version)
    os.rename(source / f"tmp-{version}", source / version)


def remove(source, version, _):
    shutil.rmtree(source / version)


def rename(source, version, _):
    os.rename(source / version, source / "step-99")


def uncommit(source, version, _):
    os.unlink(source / version / ".metadata")


def one_shard(source, version, _):
    """Only a file that the metadata names: an index of the same commit, of other bytes."""
    name = sorted(n for n in os.listdir(source / version) if n.endswith(".distcp"))[0]
    path = source / version / name
    path.write_bytes(lib.read(path))


def held_files_survive_changes():
    """Each change with everything held; what is opened afterwards is the new state."""
    rows = [(replace, "step-20"), (rewrite, "step-20"), (swap, "step-20"), (one_shard, "step-10"), (remove, None),
            (rename, None), (uncommit, None)]
    in_place = (rewrite, one_shard)
    for options in ((), ("--io", "pread")):
        for change, after in rows:
            case(f"{change.__name__} {options}")
            source = lib.fresh("source")
            for name in ("step-7", "step-10"):
                lib.copy(FSDP / "step-10", source / name)
            with lib.mount(source, *options) as m:
                m.settled()
                held = Held(m, "step-10")
                change(source, "step-10", "step-20")
                if change in in_place:
                    held.gone()
                else:
                    held.served()
                path = m.at / "step-10" / "raw" / f"{KEY}.bin"
                if after:
                    data = wait(lambda: outcome(path)[0], "it can be opened again", APPEARS)
                    equal(sha(data or b""), digest_of(after), "what it holds")
                    wait(lambda: outcome(held.link)[0] == outcome(held.paths["npy"])[0] is not None, "by key, too",
                         APPEARS)
                    equal(m.latest(), "step-10", "latest")
                else:
                    wait(lambda: errno_of(os.stat, path) == "ENOENT", "its path leads nowhere", APPEARS)
                    wait(lambda: errno_of(os.lstat, held.link) in ("ENOENT", "ESTALE"), "nor does by-key/", APPEARS)
                equal(sha(outcome(m.at / "step-7" / "raw" / f"{KEY}.bin")[0]), digest_of("step-10"), "another version")
                if change is rename:  # and damaged under the new name: an error of no version that is there
                    for shard in source.glob("step-99/*.distcp"):
                        os.truncate(shard, 0)
                    check(outcome(None, held.fds["npy"])[1] in ("ESTALE", "EIO"), "what is damaged reads")
                    equal([e for e in m.control("errors.json") if e["version"] == "step-10"], [], "errors.json")
                held.close()


def deleted(m):
    """Descriptors and mappings of the daemon whose files have no name left."""
    at = pathlib.Path(f"/proc/{m.pid}")
    links = []
    for fd in os.listdir(at / "fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(at / "fd" / fd))
    links += (at / "maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return [name for name in links if name.endswith(".distcp (deleted)")]


def room_of_removed_versions_comes_free():
    """The room of a removed version comes free when the last file that needs its shards is closed."""
    for options in ((), ("--io", "pread")):
        case(f"room {options}")
        source = lib.fresh("source")
        for name in ("step-7", "step-10"):
            lib.copy(FSDP / "step-10", source / name)
        with lib.mount(source, *options) as m:
            m.settled()
            held = Held(m, "step-10")
            remove(source, "step-10", None)
            held.served()
            check(deleted(m), "its shards are held")
            text = held.fds.pop("index.json")
            held.close()
            wait(lambda: not deleted(m), f"they are let go: {deleted(m)}", APPEARS)
            os.close(text)
            case(f"a rank's model, with nothing else open {options}")
            fd = os.open(m.at / "step-7" / "shard" / "fsdp2" / "1" / "model.safetensors", os.O_RDONLY)
            before = outcome(None, fd)
            remove(source, "step-7", None)
            wait(lambda: not m.versions(), "its version goes", APPEARS)
            equal(outcome(None, fd), before, "what is open")
            m.process.send_signal(signal.SIGTERM)  # which ends with all memory freed, too
            m.ends(0)
            os.close(fd)


def loose_files_come_and_go():
    """A directory of torch.save files: one comes, is replaced, goes."""
    names = ["proto4.pt", "legacy.pt", "big_endian.pt"]
    keys = {n: sorted(k for k, t in SAVED[n]["tensors"].items() if t["nbytes"])[0] for n in names}

    def shows(name, of):
        path = m.at / name / "raw" / f"{keys[of]}.bin"
        want = SAVED[of]["tensors"][keys[of]]["sha256"]
        wait(lambda: sha(outcome(path)[0] or b"") == want, f"{name} shows {of}", APPEARS)

    source = lib.fresh("loose")
    for n in ("1.pt", "2.pt"):
        shutil.copyfile(TORCH / names[0], source / n)
    with lib.mount(source) as m:
        m.settled()
        equal((m.versions(), m.latest()), (["1.pt", "2.pt"], "2.pt"), "versions")
        shows("2.pt", names[0])
        case("added")
        shutil.copyfile(TORCH / names[1], source / "3.pt")
        wait(lambda: m.latest() == "3.pt", "it is latest", APPEARS)
        shows("3.pt", names[1])
        case("replaced by a rename")
        fd = os.open(m.at / "2.pt" / "raw" / f"{keys[names[0]]}.bin", os.O_RDONLY)
        shutil.copyfile(TORCH / names[2], source / "new")
        os.rename(source / "new", source / "2.pt")
        shows("2.pt", names[2])
        equal(sha(outcome(None, fd)[0] or b""), SAVED[names[0]]["tensors"][keys[names[0]]]["sha256"], "what was open")
        os.close(fd)
        case("written slowly")
        whole = lib.read(TORCH / names[0])
        with open(source / "9.pt", "wb", buffering=0) as f:
            for at in range(0, len(whole), len(whole) // 5):
                f.write(whole[at:at + len(whole) // 5])
                check(m.latest() == "3.pt" or at + len(whole) // 5 >= len(whole), "half a file is not latest")
                os.listdir(m.at)
        wait(lambda: m.latest() == "9.pt", "the whole one is", APPEARS)
        case("removed")
        os.unlink(source / "9.pt")
        wait(lambda: (m.versions(), m.latest()) == (["1.pt", "2.pt", "3.pt"], "3.pt"), "it goes", APPEARS)


def a_file_as_source_may_change():
    """The source is a file: replaced by a rename, written over, taken away, back again."""
    source = lib.fresh("file") / "model.pt"
    shutil.copyfile(TORCH / "proto4.pt", source)

    def shows(of):
        t = next(t for k, t in sorted(SAVED[of]["tensors"].items()) if t["nbytes"])
        path = m.at / "model.pt" / "raw" / f"{t['key']}.bin"
        wait(lambda: sha(outcome(path)[0] or b"") == t["sha256"], f"it shows {of}", APPEARS)

    with lib.mount(source) as m:
        shows("proto4.pt")
        case("replaced")
        shutil.copyfile(TORCH / "big_endian.pt", source.parent / "new")
        os.rename(source.parent / "new", source)
        shows("big_endian.pt")
        case("written over")
        shutil.copyfile(TORCH / "legacy_dtypes.pth", source)
        shows("legacy_dtypes.pth")
        case("taken away")
        os.unlink(source)
        wait(lambda: not m.versions(), "it goes", APPEARS)
        case("back again")
        shutil.copyfile(TORCH / "proto4.pt", source)
        shows("proto4.pt")


def versions_inside_a_run_come_and_go():
    """A run with checkpoints/ in it: versions there come, are completed, go; a tag moves with them."""
    source = lib.fresh("run")
    place = source / "checkpoints"
    (source / "logs").mkdir()
    lib.copy(FSDP / "step-10", place / "step-10")
    with lib.mount(source) as m:
        m.settled()
        equal((m.versions(), m.latest()), (["step-10"], "step-10"), "versions")
        case("being written under another name")
        lib.copy(FSDP / "step-20", place / "tmp-step-20")
        wait(lambda: [x for x in m.control("incomplete.json") if x["version"] == "tmp-step-20"], "incomplete", APPEARS)
        equal((m.versions(), m.latest()), (["step-10"], "step-10"), "versions meanwhile")
        os.rename(place / "tmp-step-20", place / "step-20")
        wait(lambda: m.latest() == "step-20", "renamed it is latest", APPEARS)
        equal(sha(lib.read(m.at / "latest" / "raw" / f"{KEY}.bin")), digest_of("step-20"), "its bytes")
        case("tags")
        (place / "latest").write_text("step-10\n", encoding="ascii")
        wait(lambda: os.path.lexists(m.at / "tags" / "latest"), "a file latest is a tag", APPEARS)
        equal(os.readlink(m.at / "tags" / "latest"), "../step-10", "where it leads")
        (place / "best").symlink_to("step-10")
        wait(lambda: os.path.lexists(m.at / "tags" / "best"), "a link, too", APPEARS)
        os.symlink("step-20", place / "new")
        os.rename(place / "new", place / "best")
        wait(lambda: os.readlink(m.at / "tags" / "best") == "../step-20", "it moves", APPEARS)
        equal(sha(lib.read(m.at / "tags" / "best" / "raw" / f"{KEY}.bin")), digest_of("step-20"), "through it")
        libc, entry = lib.directory_calls()
        d, names = libc.opendir(os.fsencode(m.at / "tags")), []
        while (name := entry(d)) is not None:
            names.append(name.decode())
            libc.seekdir(d, libc.telldir(d))  # the next is asked for by its position
        libc.closedir(d)
        equal(sorted(names), [".", "..", "best", "latest"], "one by one")
        os.unlink(place / "best")
        wait(lambda: not os.path.lexists(m.at / "tags" / "best"), "it goes", APPEARS)
        case("its version goes first")
        shutil.rmtree(place / "step-10")
        wait(lambda: not os.path.lexists(m.at / "tags" / "latest"), "the tag goes with its version", APPEARS)


lib.main(held_files_survive_changes, room_of_removed_versions_comes_free, loose_files_come_and_go, a_file_as_source_may_change,
         versions_inside_a_run_come_and_go)
