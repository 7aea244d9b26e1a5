# SPDX-License-Identifier: Apache-2.0
"""How a mount begins and ends: in the background, by umount, by a signal, by death; and what is refused."""
import json
import os
import signal
import socket
import time

import lib
from lib import case, check, equal, outcome, run, wait

SOURCE = lib.GOLDEN / "dcp-fsdp2" / "ckpt"


def program(*args, **kwargs):
    return run(lib.PROGRAM, *args, env=lib.environment(), **kwargs)


def version():
    return program("version").stdout.split()[1]


def daemon_of(at):
    """The process that serves a mount in the background, as the mount reports it."""
    return json.loads(lib.read(at / ".dcpfs" / "status.json"))["pid"]


def is_mounted(at):
    m = lib.mounted(at)
    return bool(m) and m["type"] == "fuse.dcpfs"


def the_command_returns_when_mounted():
    """The command returns when the mount answers, holds nothing of its caller, and umount waits."""
    for words in (["mount"], []):
        at = lib.fresh("mnt")
        case(f"dcpfs {' '.join(words)} SOURCE MNT")
        done = program(*words, SOURCE, at)  # waits for its stdout and stderr to be closed, too
        try:
            equal((done.returncode, done.stdout, done.stderr), (0, "", f"dcpfs: step-20: {lib.NO_CONFIG}\n"), "exit code and words")
            check(is_mounted(at), "mounted when the command returned")
            equal(os.readlink(at / "latest"), "step-20", "latest, at once")
            check(len(os.listdir(at / "latest" / "npy")) > 10, "tensors, at once")
            pid = daemon_of(at)
            check(lib.alive(pid), "the daemon runs")
            equal({os.readlink(f"/proc/{pid}/fd/{n}") for n in (0, 1, 2)}, {"/dev/null"}, "its standard descriptors")
            equal(os.getsid(pid), pid, "its session is its own")
            case("a second mount on top")
            again = program("mount", SOURCE, at)
            equal(again.returncode, 3, f"exit code: {again.stderr}")
            check("already" in again.stderr, f"message: {again.stderr}")
        finally:
            done = program("umount", at)
        equal((done.returncode, done.stdout, done.stderr), (0, "", ""), "exit code and words of umount")
        check(not is_mounted(at), "unmounted when umount returned")
        wait(lambda: not lib.alive(pid), "the daemon ends")


def options_of_fstab_are_taken():
    """mount(8) calls: dcpfs SRC MNT -o ro,noauto,..."""
    at = lib.fresh("mnt")
    done = program(SOURCE, at, "-o", "ro,noauto,nofail,_netdev,user,x-systemd.automount,nosuid,nodev,defaults")
    equal(done.returncode, 0, f"exit code: {done.stderr}")
    m = lib.mounted(at)
    if check(m, "mounted"):
        equal((m["type"], m["source"]), ("fuse.dcpfs", str(SOURCE)), "type and device")
        check({"ro", "nosuid", "nodev"} <= set(m["options"].split(",")), f"options {m['options']}")
        equal(program("umount", at).returncode, 0, "umount")
    for options, word in (("rw", "ro"), ("nonsense", "nonsense"), ("uid=x", "uid"), ("ro,,", "")):
        case(f"-o {options}")
        done = program(SOURCE, at, "-o", options)
        if done.returncode == 0 and options == "ro,,":
            program("umount", at)
            continue
        equal(done.returncode, 2, f"exit code: {done.stderr}")
        check(word in done.stderr and not is_mounted(at), f"message: {done.stderr}")


def bad_places_are_refused():
    """Mount points and sources that are refused, each with its exit code and a line that says why."""
    inside = lib.copy(SOURCE, lib.fresh("source") / "ckpt")
    (inside / "below").mkdir()
    empty, at, file = lib.fresh("empty"), lib.fresh("mnt"), lib.WORK / "a file"
    file.write_text("x")
    (lib.WORK / "link").symlink_to(inside)
    rows = [
        ("over its own source", inside, inside, (2, 3)),
        ("over its own source by a link", lib.WORK / "link", inside, (2, 3)),
        ("over its own source, spelled otherwise", inside, f"{inside}/step-10/..", (2, 3)),
        ("inside its source", inside, inside / "below", (2, 3)),
        ("above its source", inside, inside.parent, (2, 3)),
        ("on a directory that is not there", SOURCE, lib.WORK / "nowhere", (3,)),
        ("on a file", SOURCE, file, (2, 3)),
        ("of a source that is not there", lib.WORK / "nowhere", at, (3,)),
        ("of an empty directory", empty, at, (4,)),
        ("of a file", file, at, (3, 4)),
        ("of a shard", SOURCE / "step-10" / "__0_0.distcp", at, (3, 4)),
    ]
    for what, source, where, codes in rows:
        for options in ([], ["-f"]):
            case(f"{what} {options}")
            done = program("mount", *options, source, where, timeout=30)
            check(done.returncode in codes, f"exit code {done.returncode}, want {codes}: {done.stderr}")
            check(done.stderr.startswith("dcpfs: ") and done.stdout == "", f"words: {done.stderr!r} {done.stdout!r}")
            check(not is_mounted(where), "nothing is mounted")
    equal(sorted(os.listdir(inside)), sorted([*os.listdir(SOURCE), "below"]), "the source is as it was")
    for what, args in (("no mount", [at]), ("nothing there", [lib.WORK / "nowhere"]), ("no operand", [])):
        case(f"umount: {what}")
        done = program("umount", *args)
        check(done.returncode in (2, 3), f"exit code {done.returncode}: {done.stderr}")


def busy_mounts_stay():
    """A mount in use is not taken away, and says so; lazily it is."""
    at = lib.fresh("mnt")
    equal(program("mount", SOURCE, at).returncode, 0, "mount")
    pid = daemon_of(at)
    fd = os.open(at / "latest" / "index.json", os.O_RDONLY)
    done = program("umount", at)
    equal(done.returncode, 3, f"exit code: {done.stderr}")
    check("busy" in done.stderr and is_mounted(at), f"message: {done.stderr}")
    check(os.pread(fd, 10, 0), "the file reads on")
    case("lazily")
    done = program("umount", "-z", at)
    equal(done.returncode, 0, f"exit code: {done.stderr}")
    check(not is_mounted(at), "out of sight")
    check(os.pread(fd, 10, 0) and lib.alive(pid), "but served for the one who has it open")
    os.close(fd)
    wait(lambda: not lib.alive(pid), "the daemon ends with the last user")


def signals_unmount():
    """SIGTERM and SIGINT unmount and exit 0, in the foreground and in the background; SIGHUP: service.py."""
    for number in (signal.SIGTERM, signal.SIGINT):
        case(number.name)
        m = lib.Mount(SOURCE)
        lib.read(m.at / "latest" / "index.json")
        os.kill(m.pid, number)
        m.ends(0)
        check(not is_mounted(m.at), "unmounted")
        case(f"{number.name}, one thread")
        m = lib.Mount(SOURCE, "--threads=1")
        lib.read(m.at / "latest" / "index.json")
        os.kill(m.pid, number)
        m.ends(0)
        equal(m.log(), f"dcpfs: step-20: {lib.NO_CONFIG}\n", "words")
    case("SIGTERM in the background")
    at = lib.fresh("mnt")
    equal(program("mount", SOURCE, at).returncode, 0, "mount")
    pid = daemon_of(at)
    os.kill(pid, signal.SIGTERM)
    wait(lambda: not is_mounted(at) and not lib.alive(pid), "unmounted and gone")
    case("SIGTERM while a file is open")
    m = lib.Mount(SOURCE)
    fd = os.open(m.at / "latest" / "index.json", os.O_RDONLY)
    os.kill(m.pid, signal.SIGTERM)
    m.ends(0)
    check(outcome(None, fd)[1] in ("ENOTCONN", "EIO"), "the open file afterwards")
    os.close(fd)


def failing_starts_leave_nothing():
    """A serving process that is killed before its mount answers, and one whose mount cannot be looked at: no mount and
    no daemon stays, and the words say why."""
    lib.ok("cc", "-shared", "-fPIC", "-o", lib.WORK / "fail.so", "-x", "c", lib.ROOT / "tests" / "mount" / "fail.c", "-ldl")
    for how, words in (("killed", "the serving process was killed by signal 9 (Killed) before the mount answered"),
                       ("blind", "Input/output error")):
        case(how)
        at = lib.fresh("mnt")
        env = {**lib.environment(), "LD_PRELOAD": str(lib.WORK / "fail.so"), "FAIL": how, "ASAN_OPTIONS": "verify_asan_link_order=0"}
        done = run(lib.PROGRAM, "mount", SOURCE, at, env=env)
        equal(done.returncode, 3, f"exit code: {done.stderr}")
        check(words in done.stderr, f"words: {done.stderr}")
        check(not is_mounted(at), "nothing stays mounted")


def killed_mounts_are_taken_away():
    """kill -9: ENOTCONN, nothing hangs, umount takes it away, and the place can be mounted again."""
    for how in ("fusermount3", "dcpfs umount"):
        m = lib.Mount(SOURCE)
        fd = os.open(m.at / "latest" / "index.json", os.O_RDONLY)
        os.kill(m.pid, signal.SIGKILL)
        m.process.wait(lib.PATIENCE)
        case(f"after kill -9, before {how}")
        gone = ("ENOTCONN", "ECONNABORTED")
        check(outcome(None, fd)[1] in gone, f"a file held open: {outcome(None, fd)[1]}")
        for call in (os.listdir, os.stat, os.statvfs, lambda at: os.stat(at / "latest"),
                     lambda at: os.open(at / ".dcpfs" / "stats", os.O_RDONLY)):
            # The kernel may still know a name or attributes for a second.
            wait(lambda: lib.errno_of(call, m.at) in gone, f"{call.__name__} fails with ENOTCONN", lib.APPEARS)
        os.close(fd)
        done = program("mount", SOURCE, m.at)
        equal(done.returncode, 3, f"mounting over it: {done.stderr}")
        check("dead mount" in done.stderr and "dcpfs umount" in done.stderr, f"the message tells what to do: {done.stderr}")
        done = run("fusermount3", "-u", m.at) if how == "fusermount3" else program("umount", m.at)
        equal(done.returncode, 0, f"{how}: {done.stderr}")
        check(not lib.mounted(m.at), "gone")
        with lib.mount(SOURCE, at=m.at) as again:
            equal(again.latest(), "step-20", "latest after mounting again")


def readers_of_killed_daemons_get_errors():
    """Readers of a daemon that is killed get an error in time."""
    m = lib.Mount(SOURCE)
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                while True:
                    for name in os.listdir(m.at / "latest" / "raw"):
                        if outcome(m.at / "latest" / "raw" / name)[1] in ("ENOTCONN", "ECONNABORTED"):
                            os._exit(0)
            except OSError:
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    wait(lambda: m.stats()["read"] > 50,
         "readers are at work")
    os.kill(m.pid, signal.SIGKILL)
    m.process.wait(lib.PATIENCE)
    ends = time.monotonic() + lib.PATIENCE
    codes = []
    for pid in pids:
        while not (got := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < ends:
            time.sleep(0.02)
        codes.append(os.waitstatus_to_exitcode(got[1]) if got[0] else "still waits")
    equal(codes, [0] * 4, "how the readers ended")
    run("fusermount3", "-u", m.at)


def closed_descriptors_are_survived():
    """Started without stdin, stdout and stderr it does not take a shard for one."""
    at = lib.fresh("mnt")
    done = run("sh", "-c", 'exec "$0" mount "$1" "$2" <&- >&- 2>&-', lib.PROGRAM, SOURCE, at, env=lib.environment())
    equal(done.returncode, 0, "exit code")
    check(is_mounted(at), "mounted")
    check(lib.read(at / "latest" / "index.json"), "index.json")
    equal(program("umount", at).returncode, 0, "umount")


def damage(at, source):
    """Take a shard away, and read what it had; the end of what the log says of that."""
    os.rename(source / "step-20" / "__1_0.distcp", source / "away")
    check(outcome(at / "step-20" / "raw" / "model.embed_tokens.weight.bin")[1], "a tensor cannot be read")
    return "step-20: model.embed_tokens.weight: __1_0.distcp: No such file or directory"


def log_files_have_every_line():
    """In the background --log-file gets every line, .dcpfs/log shows the last ones, and both are private."""
    source, at, file = lib.copy(SOURCE, lib.fresh("source") / "ckpt"), lib.fresh("mnt"), lib.fresh("log") / "log"
    for where in (source / "log", at / "log"):
        case(f"--log-file {where}")
        done = program("mount", "--log-file", where, source, at)
        equal((done.returncode, where.exists()), (2, False), f"exit code, and is it there: {done.stderr}")
    case("--log-file")
    equal(program("mount", "--log-file", file, source, at).returncode, 0, "exit code")
    pid, first = daemon_of(at), file.read_text()
    check(f" {source}: mounted at {at} by process {pid} (dcpfs {version()})\n" in first, f"the first line: {first}")
    equal(json.loads(lib.read(at / ".dcpfs" / "config.json"))["log"], str(file), "config.json")
    said = damage(at, source)
    check(f" {said}\n" in file.read_text(), f"after a failed read: {file.read_text()}")
    wait(lambda: (at / ".dcpfs" / "log").read_text() == file.read_text(), ".dcpfs/log is the same")
    equal(file.stat().st_mode & 0o777, 0o600, "mode")
    os.rename(file, str(file) + ".1")
    os.kill(pid, signal.SIGTERM)
    wait(lambda: not lib.alive(pid), "the daemon ends")
    check(f" {at}: the mount ends, by signal: Terminated\n" in file.read_text(), f"its end: {file.read_text()}")


def lines_go_to_syslog():
    """In the background, without --log-file."""
    source, at, dev = lib.copy(SOURCE, lib.fresh("source") / "ckpt"), lib.fresh("mnt"), lib.fresh("dev")
    # In a chroot / is no mount, so what is mounted below is made private by itself.
    other = ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", '''
        mount --make-rprivate / 2>/dev/null || mount --make-rprivate /dev || exit 77
        for name in null fuse; do touch "$1/$name" && mount --bind "/dev/$name" "$1/$name" || exit 77; done
        mount --rbind "$1" /dev || exit 77
        dcpfs=$2 source=$3 at=$4
        "$dcpfs" mount "$source" "$at" && mv "$source/step-20/__1_0.distcp" "$source/away" &&
        ! cat "$at/step-20/raw/model.embed_tokens.weight.bin" >/dev/null && "$dcpfs" umount "$at"''', "sh"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(dev / "log"))
        log.settimeout(lib.PATIENCE)
        done = run(*other, dev, lib.PROGRAM, source, at, env=lib.environment())
        if done.returncode in (1, 77) and not done.stdout and os.geteuid():
            return  # only root may mount in a namespace
        equal(done.returncode, 0, f"exit code: {done.stderr}")
        lines = []
        while not lines or "the mount ends" not in lines[-1]:
            lines.append(log.recv(4096).decode())
    for priority, text in ((30, "mounted at"), (28, "step-20: model.embed_tokens.weight: __1_0.distcp: No such file"), (30, "unmounted")):
        check(any(line.startswith(f"<{priority}>") and " dcpfs[" in line and text in line for line in lines), f"{text}: {lines}")


def control_files_answer_afresh():
    """.dcpfs/ holds what fs/README.md says, and always answers afresh."""
    with lib.mount(SOURCE) as m:
        m.settled()
        equal(sorted(os.listdir(m.at / ".dcpfs")),
              ["blob", "config.json", "errors.json", "incomplete.json", "log", "metrics", "stats", "status.json"], "names")
        config = m.control("config.json")
        equal((config["source"], config["mountpoint"], config["cache"]), (str(SOURCE), str(m.at), str(lib.WORK / "cache")), "config.json")

        def counters():
            lines = lib.read(m.at / ".dcpfs" / "stats").decode().splitlines()
            return {k: int(v) for k, v in map(str.split, lines)}

        before = counters()
        data, _ = outcome(m.at / "latest" / "index.json")
        after = counters()
        check(after["read"] > before["read"] and after["read_bytes"] >= before["read_bytes"] + len(data),
              f"counters count: {before} {after}")
        equal(m.control("status.json")["pid"], m.pid, "pid in status.json")
        check(os.stat(m.at / ".dcpfs" / "stats").st_mtime_ns > os.stat(m.at).st_mtime_ns, "they were made after the mount")


def texts_stay_while_read():
    """Without OPEN nothing says which reader a READ belongs to: while one reads, its text stays the same."""
    with lib.mount(SOURCE, "--no-open") as m:
        fd = os.open(m.settled().at / ".dcpfs" / "stats", os.O_RDONLY)
        first = before = time.monotonic()
        text = os.pread(fd, 1 << 16, 0)
        while time.monotonic() - first < 1.6:
            time.sleep(0.02)
            got, now = os.pread(fd, 1 << 16, 0), time.monotonic()
            if now - before > 0.2:  # a busy machine: it may be taken for another reader
                break
            equal(got, text, f"after {now - first:.2f} s")
            before = now
        time.sleep(1.1)
        check(os.pread(fd, 1 << 16, 0) != text, "then it is another")
        os.close(fd)


def strange_names_are_mounted():
    """Mount points and sources with blanks, commas, newlines and letters beyond ASCII."""
    for name in ("with blank", "with,comma", "with\ttab", "with\nnewline", "with\\backslash", "ünï-日本", "-dash",
                 "100%"):
        case(repr(name))
        top = lib.fresh("strange")
        at, source = top / name, lib.copy(SOURCE, top / f"{name}-source")
        at.mkdir()
        m = lib.Mount(source, at=at, answers=False)
        wait(lambda: m.answers() or not m.running(), "it answers")
        if check(m.running(), f"it runs: {m.log()}"):
            equal(m.latest(), "step-20", "latest")
            equal(lib.mounted(at)["source"], str(source), "device in mountinfo")
            equal(program("umount", at).returncode, 0, "dcpfs umount")
            m.ends(0)
    case("relative paths")
    top = lib.fresh("relative")
    lib.copy(SOURCE, top / "source")
    (top / "mnt").mkdir()
    done = program("mount", "source", "mnt", cwd=top)
    equal(done.returncode, 0, f"exit code: {done.stderr}")
    equal(os.listdir(top / "mnt" / "latest") != [], True, "listing latest/")
    equal(program("umount", "mnt", cwd=top).returncode, 0, "dcpfs umount")


lib.main(the_command_returns_when_mounted, options_of_fstab_are_taken, bad_places_are_refused, busy_mounts_stay, signals_unmount,
         failing_starts_leave_nothing, killed_mounts_are_taken_away, readers_of_killed_daemons_get_errors,
         closed_descriptors_are_survived, log_files_have_every_line, lines_go_to_syslog, control_files_answer_afresh,
         texts_stay_while_read, strange_names_are_mounted)
