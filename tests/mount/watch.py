# SPDX-License-Identifier: Apache-2.0
"""How the mount learns that its source changed, and what it asks of the file system while nothing does."""
import os
import shutil
import signal
import time

import lib
from lib import APPEARS, Idle, case, check, equal, wait

FSDP, _ = lib.golden("dcp-fsdp2")
VERSIONS = 20


def source_with(*names):
    source = lib.fresh("source")
    for name in names:
        lib.copy(FSDP / "step-10", source / name)
    return source


def quiet(m):
    """Wait until the last look was no reaction to anything."""
    last = [None, None]

    def calm():
        now = m.stats()["rescans"]
        if now != last[0]:
            last[:] = now, Idle()
        return last[1].seconds() > 2.5
    wait(calm, "the looks come to rest")
    return m.stats()


def idle_mounts_do_not_look():
    """Three short looks' time in which nothing changes, of a mount of which everything was read."""
    source = source_with(*(f"step-{i}" for i in range(VERSIONS)))
    with lib.mount(source) as told, lib.mount(source, blind=True) as blind:
        for m in (told, blind):
            m.settled()
            for path in m.at.glob("step-*/raw/*"):
                lib.read(path)
        (source / "note").touch()  # a whole look now, so that the next one is a minute away
        before, began = (quiet(told), quiet(blind)), time.monotonic()
        wait(lambda: time.monotonic() > began + 9 and (before[1]["watches"] or blind.stats()["looks"] > before[1]["looks"] + 2),
             "short looks", 15)
        made = [{k: after[k] - b[k] for k in after} for after, b in zip((told.stats(), blind.stats()), before)]
        took = time.monotonic() - began
        case("with inotify")
        check(before[0]["watches"] > VERSIONS, f"{before[0]['watches']} watches")
        equal((made[0]["rescans"], made[0]["looks"]), (0, 0), "looks")
        if not before[1]["watches"]:
            case("without")
            check(made[1]["rescans"] <= 1 + took / 60, f"{made[1]['rescans']} whole looks in {took:.1f} s")
            check(made[1]["looks"] <= 1 + took / 3, f"{made[1]['looks']} short looks in {took:.1f} s")
            check(made[1]["look_calls"] <= made[1]["looks"] * (2 * VERSIONS + 1), f"{made[1]['look_calls']} calls")
            case("while a process reads")
            with open(next(blind.at.glob("step-3/raw/*")), "rb"):
                before = quiet(blind)
                wait(lambda: blind.stats()["looks"] >= before["looks"] + 2, "short looks")
                made = {k: n - before[k] for k, n in blind.stats().items()}
                files = len(os.listdir(source / "step-3"))
                check(made["look_calls"] <= made["looks"] * (2 * VERSIONS + 1 + files), f"{made['look_calls']} calls")
            case("an open that meets a change")  # of a file that is remembered: the version is looked at at once
            tensor = next(t for t in blind.index("step-5")["tensors"].values() if t["nbytes"])

            def meet():
                rewrite(source / "step-5" / tensor["pieces"][0]["file"])
                lib.outcome(blind.at / "step-5" / tensor["files"]["raw"])
            reindexed(blind, "step-5", meet)


def growing_logs_cost_few_looks():
    """Events that change nothing are not worth more and more looks."""
    source = source_with("step-1", "step-2")
    with lib.mount(source) as m:
        before = quiet(m.settled())
        began = time.monotonic()
        with open(source / "train.log", "a", encoding="ascii") as f:
            while time.monotonic() < began + 6:
                f.write("loss 1.0\n")
                f.flush()
                time.sleep(0.02)
        made, took = m.stats()["rescans"] - before["rescans"], time.monotonic() - began
        check(made <= 4 + took / 2, f"{made} looks in {took:.1f} s")
        wait(lambda: m.stats()["rescans"] > before["rescans"], "it is looked at", APPEARS)
        lib.copy(FSDP / "step-10", source / "step-3")
        wait(lambda: m.latest() == "step-3", "a version is seen beside it", APPEARS)


def watches_of_removed_versions_go():
    """Of versions that left, nothing is watched."""
    source = source_with(*(f"step-{i}" for i in range(VERSIONS)))
    with lib.mount(source) as m:
        before = quiet(m.settled())["watches"]
        for i in range(VERSIONS - 1):
            shutil.rmtree(source / f"step-{i}")
        wait(lambda: m.versions() == [f"step-{VERSIONS - 1}"], "they leave", APPEARS)
        wait(lambda: m.stats()["watches"] == before - (VERSIONS - 1), "their watches, too", APPEARS)


def overflows_lose_nothing():
    """More events than the kernel keeps: what it dropped is found."""
    source = source_with("step-1")
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as f:
        limit = int(f.read())
    with lib.mount(source) as m:
        quiet(m.settled())
        os.kill(m.pid, signal.SIGSTOP)
        try:
            for _ in range(min(limit, 100000) // 3 + 100):
                os.close(os.open(source / "x", os.O_CREAT | os.O_WRONLY))
                os.unlink(source / "x")
            lib.copy(FSDP / "step-10", source / "step-2")
        finally:
            os.kill(m.pid, signal.SIGCONT)
        wait(lambda: m.latest() == "step-2", "the new version", APPEARS)


def reindexed(m, version, change):
    """After the change the version comes back as another one."""
    before = os.stat(m.at / version).st_ino
    change()

    def new():
        try:
            return os.stat(m.at / version).st_ino != before
        except OSError:
            return False
    wait(new, f"{version} is indexed again", APPEARS)


def rewrite(path):
    with open(path, "r+b") as f:
        byte = f.read(1)
        f.seek(0)
        f.write(byte)


def deep_and_linked_changes_are_seen():
    """Files that the directory of their version does not tell of: in directories below it, and behind links."""
    golden, _ = lib.golden("megatron-legacy")
    source = lib.fresh("source") / "run"
    lib.copy(golden, source)
    with lib.mount(source) as m:
        version = m.settled().versions()[0]
        case("a directory below")
        quiet(m)
        reindexed(m, version, lambda: rewrite(next(source.glob("iter_*/mp_rank_01*/*.pt"))))
        case("the directory above the source")
        before = source.parent
        os.rename(before, f"{before}.away")
        wait(lambda: not m.versions(), "its versions go", APPEARS)
        os.rename(f"{before}.away", before)
        wait(m.versions, "and come back", APPEARS)
    other = lib.fresh("else") / "step-2"
    lib.copy(FSDP / "step-10", other)
    shard = next(other.glob("*.distcp"))
    os.rename(shard, f"{shard}.real")
    shard.symlink_to(f"{shard.name}.real")
    with lib.mount(other) as m:
        m.settled()
        case("behind a link")
        os.link(f"{shard}.real", lib.WORK / "same")  # no directory that is watched tells of it
        quiet(m)
        reindexed(m, "step-2", lambda: rewrite(lib.WORK / "same"))


lib.main(idle_mounts_do_not_look, growing_logs_cost_few_looks, watches_of_removed_versions_go, overflows_lose_nothing,
         deep_and_linked_changes_are_seen)
