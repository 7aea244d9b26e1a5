# SPDX-License-Identifier: Apache-2.0
"""Versions that come, go, are completed, damaged or replaced under a mount, and which is latest."""
import os
import shutil
import threading

import lib
from lib import APPEARS, case, check, equal, outcome, sha, wait

FSDP, MANIFEST = lib.golden("dcp-fsdp2")


def source_with(*names, of="step-10"):
    source = lib.fresh("source")
    for name in names:
        lib.copy(FSDP / of, source / name)
    return source


def shows(m, names, latest, within=APPEARS):
    """Soon the root lists exactly these and latest leads to that one."""
    wait(lambda: (m.versions(), m.latest()) == (sorted(names), latest), f"versions {names}, latest {latest}", within)
    equal((m.versions(), m.latest()), (sorted(names), latest), "versions and latest")
    if latest:
        equal(lib.errno_of(os.listdir, m.at / "latest" / "raw"), None, "listing latest/raw")


def wrong_keys(m, version, of):
    index = m.index(version)["tensors"]
    equal(sorted(index), sorted(MANIFEST[of]["tensors"]), f"keys of {version}")
    wrong = {}
    for key, t in index.items():
        data, error = outcome(m.at / version / t["files"]["raw"])
        if error or sha(data) != MANIFEST[of]["tensors"][key]["sha256"]:
            wrong[key] = error or "wrong bytes"
    return wrong


def reads(m, version, of="step-10"):
    """Every tensor of the version has the digest the manifest has for it."""
    return equal(wrong_keys(m, version, of), {}, f"keys of {version} that do not read as saved in {of}")


def reason(m, version):
    return next((x["reason"] for x in m.control("incomplete.json") if x["version"] == version), None)


def versions_sort_by_number():
    """step-9 before step-10 before step-100, whatever their mtimes say."""
    rows = [(["step-9", "step-10", "step-100"], "step-100"), (["step-9", "step-10"], "step-10"),
            (["ckpt_2", "ckpt_11", "ckpt_1"], "ckpt_11"), (["7", "10", "9"], "10"),
            (["epoch=1-step=200", "epoch=1-step=1000", "epoch=0-step=5000"], "epoch=1-step=1000"),
            (["release", "iter_0000002", "iter_0000010"], "iter_0000010"), (["best", "step-1"], "step-1"),
            (["m--val_loss=9.13-epoch=2", "m--val_loss=1.20-epoch=3"], "m--val_loss=1.20-epoch=3"),
            (["ep2-ba5", "ep10-ba1"], "ep10-ba1"), (["step-10", "step-10-ema"], "step-10"), (["step-900", "last"], "last"),
            (["step-0008", "step-10"], "step-10"), (["global_step99", "global_step100"], "global_step100")]
    for names, latest in rows:
        case(str(names))
        source = source_with(*names)
        for age, name in enumerate(reversed(sorted(names))):
            os.utime(source / name / ".metadata", (1_600_000_000 + age * 1000,) * 2)
        with lib.mount(source) as m:
            shows(m.settled(), names, latest, lib.PATIENCE)


def a_checkpoint_is_one_version():
    """One checkpoint as SOURCE: its base name is the version, with or without a slash behind it."""
    source = source_with("run-7")
    for path in (source / "run-7", f"{source}/run-7/", f"{source}/./run-7"):
        case(str(path))
        with lib.mount(path) as m:
            shows(m, ["run-7"], "run-7", lib.PATIENCE)
    case("the checkpoint as the working directory")
    with lib.mount(".", cwd=source / "run-7") as m:
        shows(m, ["run-7"], "run-7", lib.PATIENCE)
        reads(m, "run-7")


def broken_is_not_latest():
    """A version of which no key can be read is shown, but latest leads to the one before it."""
    source = source_with("step-9", "step-10")
    for data_file in (source / "step-10").glob("*.distcp"):
        data_file.write_bytes(b"")
    with lib.mount(source) as m:
        shows(m.settled(), ["step-9", "step-10"], "step-9", lib.PATIENCE)


def other_things_are_no_versions():
    """Links, files and strange names beside versions neither vanish versions nor become some."""
    source = source_with("step-1", "step-2")
    (source / "latest").symlink_to("step-1")
    (source / "notes.txt").write_text("latest: step-1\n")
    (source / "logs").mkdir()
    (source / "step-3.tmp").mkdir()
    (source / "dangling").symlink_to("nowhere")
    (source / "loop").symlink_to("loop")
    os.mkfifo(source / "fifo")
    with lib.mount(source) as m:
        m.settled()
        case("a link called latest in the source")
        equal(m.latest(), "step-2", "latest")
        names = os.listdir(m.at)
        equal(len(names), len(set(names)), f"names in the root are distinct: {names}")
        check({"step-1", "step-2"} <= set(names), f"versions: {names}")
        check(not {"logs", "notes.txt", "dangling", "loop", "fifo"} & set(names), f"no version: {names}")
        reads(m, "step-1")


def completed_versions_appear():
    """A save without its metadata is not shown; when that arrives, it is there within seconds."""
    source = source_with("step-10")
    with lib.mount(source) as m:
        shows(m.settled(), ["step-10"], "step-10")
        case("a writer begins")
        directory = source / "step-20"
        directory.mkdir()
        for name in sorted(os.listdir(FSDP / "step-20")):
            if name != ".metadata":
                shutil.copy2(FSDP / "step-20" / name, directory / name)
        wait(lambda: "metadata" in (reason(m, "step-20") or ""), "incomplete.json tells of step-20, and why", APPEARS)
        shows(m, ["step-10"], "step-10")
        lib.fails("ENOENT", os.stat, m.at / "step-20")
        case("and completes as torch does: a temporary file, then a rename")
        shutil.copyfile(FSDP / "step-20" / ".metadata", directory / ".metadata.tmp")
        os.rename(directory / ".metadata.tmp", directory / ".metadata")
        shows(m, ["step-10", "step-20"], "step-20")
        reads(m, "step-20", "step-20")
        wait(lambda: reason(m, "step-20") is None, "incomplete.json forgets it", APPEARS)
        case("metadata written slowly in place")
        lib.copy(FSDP / "step-10", source / "step-30.x")
        whole = lib.read(source / "step-30.x" / ".metadata")
        os.unlink(source / "step-30.x" / ".metadata")
        os.rename(source / "step-30.x", source / "step-30")
        with open(source / "step-30" / ".metadata", "wb", buffering=0) as f:
            for at in range(0, len(whole), len(whole) // 7):
                f.write(whole[at:at + len(whole) // 7])
                os.listdir(m.at)
        shows(m, ["step-10", "step-20", "step-30"], "step-30")
        reads(m, "step-30")


def runs_without_versions_are_mounted():
    """A run that has only begun can be mounted; its first version appears."""
    source = source_with("step-1")
    os.rename(source / "step-1" / ".metadata", source / "metadata")
    with lib.mount(source) as m:
        equal(sorted(os.listdir(m.at)), [".dcpfs", "by-key", "tags"], "the root")
        lib.fails("ENOENT", os.stat, m.at / "latest")
        lib.fails("ENOENT", os.readlink, m.at / "latest")
        check(reason(m, "step-1"), "incomplete.json says why")
        equal(m.control("status.json")["latest"], None, "latest in status.json")
        os.rename(source / "metadata", source / "step-1" / ".metadata")
        shows(m, ["step-1"], "step-1")


def versions_leave_without_metadata():
    """Without its metadata a version leaves; latest falls back; it comes back with it."""
    source = source_with("step-10", "step-20")
    with lib.mount(source) as m:
        shows(m.settled(), ["step-10", "step-20"], "step-20", lib.PATIENCE)
        held = os.open(m.at / "step-20" / "index.json", os.O_RDONLY)
        path = m.at / "step-20" / next(t["files"]["raw"] for t in m.index()["tensors"].values() if t["nbytes"])
        tensor = os.open(path, os.O_RDONLY)
        case("metadata removed")
        os.rename(source / "step-20" / ".metadata", lib.WORK / "aside")
        shows(m, ["step-10"], "step-10")
        check(reason(m, "step-20"), "incomplete.json says why")
        wait(lambda: lib.errno_of(os.stat, path) in ("ENOENT", "ESTALE"), "its paths lead nowhere", APPEARS)
        check(outcome(None, tensor)[1] in (None, "ESTALE", "EIO"), "a tensor held open")
        os.close(held)
        os.close(tensor)
        reads(m, "step-10")
        case("metadata back")
        os.rename(lib.WORK / "aside", source / "step-20" / ".metadata")
        shows(m, ["step-10", "step-20"], "step-20")
        reads(m, "step-20")


def versions_with_damaged_metadata_leave():
    """Garbage for metadata: the version leaves, and incomplete.json and errors.json say why."""
    whole = lib.read(FSDP / "step-10" / ".metadata")
    rows = {"empty": b"", "cut in half": whole[:len(whole) // 2], "random": lib.rng("garbage").randbytes(5000),
            "text": b"hello\n", "one byte off": whole[:200] + bytes([whole[200] ^ 0xff]) + whole[201:]}
    source = source_with("step-10", "step-20")
    with lib.mount(source) as m:
        for what, data in rows.items():
            shows(m.settled(), ["step-10", "step-20"], "step-20", lib.PATIENCE)
            case(f"metadata {what}")
            (source / "step-20" / ".metadata").write_bytes(data)
            wait(lambda: "step-20" not in m.versions() or what == "one byte off", "the version leaves", APPEARS)
            if what != "one byte off":  # that one may be in a part that is not needed
                shows(m, ["step-10"], "step-10")
                wait(lambda: reason(m, "step-20"), "incomplete.json says why", APPEARS)
                wait(lambda: [e for e in m.control("errors.json") if e["version"] == "step-20" and e["error"]],
                     "errors.json says why", APPEARS)
            reads(m, "step-10")
            (source / "step-20" / ".metadata").write_bytes(whole)
        # the last damage may never have been seen: until the mend is, an old version may still leave
        saved = os.stat(source / "step-20" / ".metadata").st_mtime_ns
        wait(lambda: shown(m, "step-20") == saved, "the mend", APPEARS)
        shows(m, ["step-10", "step-20"], "step-20")
        wait(lambda: reason(m, "step-20") is None, "incomplete.json forgets it", APPEARS)
        wait(lambda: not differs(m, "step-20"), "step-20 reads as saved", lib.PATIENCE)
        wait(lambda: not m.control("errors.json"), "and errors.json", APPEARS)


def shown(m, version):
    """The time of a version; None while it is not there."""
    try:
        return os.stat(m.at / version).st_mtime_ns
    except OSError:
        return None


def differs(m, version, of="step-10"):
    """What reads otherwise, or ESTALE: another content of the version has just taken its place."""
    try:
        return wrong_keys(m, version, of)
    except OSError as e:
        return e


def damaged_versions_are_passed_over():
    """The newest is damaged from the start: the one before is latest, and the mount comes up."""
    source = source_with("step-10", "step-20")
    (source / "step-20" / ".metadata").write_bytes(b"\x80\x02garbage")
    with lib.mount(source) as m:
        shows(m.settled(), ["step-10"], "step-10", lib.PATIENCE)
        check(reason(m, "step-20"), "incomplete.json says why")
        lib.fails("ENOENT EIO", os.listdir, m.at / "step-20")


def versions_saved_over_are_new():
    """Another save under the same name: the new one is shown, with new inode numbers."""
    source = source_with("step-10")
    with lib.mount(source) as m:
        shows(m, ["step-10"], "step-10")
        before = os.stat(m.at / "step-10" / "index.json").st_ino
        case("saved over, shards first, metadata last")
        for name in sorted(os.listdir(FSDP / "step-20"), reverse=True):
            shutil.copyfile(FSDP / "step-20" / name, source / f"{name}.tmp")
            os.rename(source / f"{name}.tmp", source / "step-10" / name)
        want = MANIFEST["step-20"]["tensors"]
        differ = [k for k, t in want.items() if t["sha256"] != MANIFEST["step-10"]["tensors"].get(k, {}).get("sha256")]
        check(differ, "the two saves differ")
        saved = os.stat(source / "step-10" / ".metadata").st_mtime_ns  # until that is shown, what is may be an index of some of it

        def new():
            try:
                index = m.index("step-10")["tensors"]
                data, _ = outcome(m.at / "step-10" / index[differ[0]]["files"]["raw"])
                return data is not None and sha(data) == want[differ[0]]["sha256"] and os.stat(m.at / "step-10").st_mtime_ns == saved
            except (OSError, KeyError):
                return False

        wait(new, "the new save is shown", APPEARS + 5)
        reads(m, "step-10", "step-20")
        check(os.stat(m.at / "step-10" / "index.json").st_ino != before, "new content has new inode numbers")


def removed_versions_leave():
    """Version directories that go and change their names."""
    source = source_with("step-1", "step-2", "step-3")
    with lib.mount(source) as m:
        shows(m.settled(), ["step-1", "step-2", "step-3"], "step-3", lib.PATIENCE)
        case("step-3 removed")
        shutil.rmtree(source / "step-3")
        shows(m, ["step-1", "step-2"], "step-2")
        case("step-1 becomes step-9")
        os.rename(source / "step-1", source / "step-9")
        shows(m, ["step-2", "step-9"], "step-9")
        reads(m, "step-9")
        case("everything goes")
        shutil.rmtree(source / "step-2")
        shutil.rmtree(source / "step-9")
        wait(lambda: not m.versions(), "nothing is left", APPEARS)
        lib.copy(FSDP / "step-20", source / "step-4")
        shows(m, ["step-4"], "step-4")


def latest_is_always_there():
    """While the source is looked at again and again, latest is always there."""
    source = source_with("step-1", "step-2")
    with lib.mount(source) as m:
        shows(m.settled(), ["step-1", "step-2"], "step-2", lib.PATIENCE)
        missing, looks, stop = [], [0], threading.Event()

        def look():
            while not stop.is_set():
                looks[0] += 1
                for call in (os.readlink, os.stat):
                    error = lib.errno_of(call, m.at / "latest")
                    if error:
                        missing.append(error)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for t in threads:
            t.start()
        for i in range(6):
            before = m.stats()["rescans"]
            (source / f"note-{i}").write_text("x")
            wait(lambda: m.stats()["rescans"] > before, "the source is looked at again", APPEARS)
        stop.set()
        for t in threads:
            t.join()
        equal(missing, [], f"errors of latest in {looks[0]} looks")


def a_lost_source_is_survived():
    """The source itself goes: errors, no crash, and unmounting works. It may come back."""
    source = source_with("step-1", "step-2")
    with lib.mount(source) as m:
        shows(m.settled(), ["step-1", "step-2"], "step-2", lib.PATIENCE)
        path = m.at / "step-2" / next(t["files"]["raw"] for t in m.index()["tensors"].values() if t["nbytes"])
        case("the source is renamed away")
        os.rename(source, f"{source}.away")
        check(outcome(path)[1] in (None, "ENOENT", "EIO", "ESTALE"), "a read without the source")
        check(m.running() and lib.read(m.at / ".dcpfs" / "status.json"), "the daemon lives")
        case("and comes back")
        os.rename(f"{source}.away", source)
        shows(m, ["step-1", "step-2"], "step-2", APPEARS + 5)
        reads(m, "step-1")
        case("the source is removed")
        shutil.rmtree(source)
        wait(lambda: not m.running() or outcome(path)[1] in ("ENOENT", "EIO", "ESTALE"), "reads fail", APPEARS)
        lib.errno_of(os.listdir, m.at)
        check(m.running(), "the daemon lives")


def absent_sources_are_waited_for():
    """--wait: a source that is empty, or not there, is mounted; its versions appear."""
    for there in (True, False):
        case("an empty source" if there else "an absent source")
        source = lib.fresh("runs") / "run"
        if there:
            source.mkdir()
        with lib.mount(source, "--wait") as m:
            equal((m.versions(), m.latest()), ([], None), "nothing yet")
            lib.copy(FSDP / "step-10", source / "step-10")
            shows(m, ["step-10"], "step-10")
            lib.copy(FSDP / "step-20", source / "step-20")
            shows(m, ["step-10", "step-20"], "step-20")


lib.main(absent_sources_are_waited_for, versions_sort_by_number, a_checkpoint_is_one_version, broken_is_not_latest,
         other_things_are_no_versions, completed_versions_appear, runs_without_versions_are_mounted,
         versions_leave_without_metadata, versions_with_damaged_metadata_leave, damaged_versions_are_passed_over,
         versions_saved_over_are_new, removed_versions_leave, latest_is_always_there, a_lost_source_is_survived)
