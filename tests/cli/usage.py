#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Help fits a screen, invalid words are refused in one line, and exit codes are kept."""
import ctypes
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios

from cli import DCPFS, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run, sample

VERBS = "mount umount index ls tree browse show cat stats diff verify find du scan bisect report status warm plan load export save rules cache doctor version help".split()
LONG = ("mount", "plan", "load", "export", "save", "find", "stats")  # which need more options than fit a screen


def every_verb_has_a_page():
    got = run("help")
    equal(got.returncode, OK, "dcpfs help")
    equal(run("--help").stdout, got.stdout, "dcpfs --help is dcpfs help")
    equal(run("-h").stdout, got.stdout, "dcpfs -h is dcpfs help")
    for verb in VERBS:
        check(f"\n  {verb} ".encode() in got.stdout, f"dcpfs help does not list {verb}")
    for args in [()] + [(verb,) for verb in VERBS]:
        page = run("help", *args)
        lines = page.stdout.decode().splitlines()
        equal(page.returncode, OK, f"help {args}")
        check(args in [(v,) for v in LONG] or len(lines) <= (24 if args else len(VERBS) + 10), f"help {args}: {len(lines)} lines do not fit a screen")
        check(max(map(len, lines)) <= 80, f"help {args}: wider than 80 columns")
        check("examples:" in lines[-4:-1], f"help {args}: examples do not stand last")
        if args:
            equal(run(args[0], "--help").stdout, page.stdout, f"{args[0]} --help is help {args[0]}")
            equal(run(args[0], "-h").stdout, page.stdout, f"{args[0]} -h is help {args[0]}")


def pages_fit_the_terminal():
    """Pages fit the terminal from 40 columns on, by COLUMNS or by what the terminal says, and examples are still commands."""
    for i, (columns, most) in enumerate(((20, 40), (40, 40), (57, 57), (80, 80), (97, 97), (300, 100))):
        for args in sample([()] + [(verb,) for verb in VERBS], i):
            text = run("help", *args, COLUMNS=columns).stdout.decode()
            wide = [line for line in text.splitlines() if len(line) > most and " " in line.strip()]
            check(not wide, f"help {args} at {columns} columns: {wide}")
            words = run("help", *args, COLUMNS=100).stdout.decode().replace("\\\n", " ").split()
            equal(text.replace("\\\n", " ").split(), words, f"help {args} at {columns} columns: its words")
    shown = on_terminal(["help", "export"], columns=45).splitlines()
    check(shown and 40 < max(map(len, shown)) <= 45, f"on a terminal of 45 columns: {max(map(len, shown))}")


def on_terminal(words, columns=80, **env):
    """What a terminal of so many columns gets of the command."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        full = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR") and not k.startswith("OMPI")}
        os.execve(DCPFS, [DCPFS, *map(str, words)], {**full, "TERM": "xterm", "LC_ALL": "C.UTF-8", "DCPFS_CACHE": str(SCRATCH / "cache"), **env})
    got = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # its other end is closed
            break
        if not part:
            break
        got += part
    os.close(terminal)
    os.waitpid(pid, 0)
    return got.decode().replace("\r\n", "\n")


def colours_follow_the_terminal():
    """States have colours on a terminal, which change no word; nowhere else."""
    source = GOLDEN / "dcp-fsdp2" / "ckpt"
    words = ["ls", source]
    shown = on_terminal(words)
    check("\033[38;5;34mcomplete\033[0m" in shown and "\033[38;5;172mincomplete\033[0m" in shown, f"ls: {shown!r}")
    plain = on_terminal(words, NO_COLOR="1")
    check("\033" not in plain, f"NO_COLOR: {plain!r}")
    equal(re.sub("\033\\[[0-9;]*m", "", shown), plain, "the words")
    check("\033" not in on_terminal(words, TERM="dumb"), "TERM=dumb")
    check(b"\033" not in run(*words, TERM="xterm").stdout, "a pipe")
    check("\033[38;5;34mok" in on_terminal(["doctor", source]), "doctor")
    check("\033[38;5;160mdiffers\033[0m" in on_terminal(["diff", source, "10", "20"], columns=160), "diff")


def quiet_leaves_errors():
    """--quiet leaves errors, what is asked for as data or a file, and the exit code."""
    source, out = GOLDEN / "dcp-fsdp2" / "ckpt", SCRATCH / "quiet"
    for words in (("index", source), ("verify", source, "20"), ("export", source, "20", out, "--as", "safetensors"), ("doctor", source),
                  ("load", source, "20", "--layout", "fsdp2", "--rank", "1"), ("scan", source, "20"), ("warm", source, "20")):
        loud = run(*words, "--force") if words[0] == "export" else run(*words)
        check(loud.stdout, f"{words}: it reports")
        extra = ["--force"] if words[0] == "export" else []
        for word in ("-q", "--quiet"):
            got = run(*words, *extra, word)
            equal((got.returncode, got.stdout, got.stderr), (loud.returncode, b"", b""), f"{words} {word}")
    shutil.rmtree(out)
    equal(run("diff", "--quiet", source, "10", "20").stdout, b"", "diff --quiet")
    equal(run("diff", "--quiet", source, "10", "20").returncode, run("diff", source, "10", "20").returncode, "its exit code")
    equal(run("ls", "-q", source).stdout, run("ls", source).stdout, "ls is asked for what it prints")
    check(json.loads(run("verify", "-q", source, "20", "--json").stdout)["tensors"] > 10, "JSON is asked for")
    check(run("verify", "-q", source, "20", "--record", "-").stdout.count(b"\n") > 10, "a record is asked for")
    fails(NO, "no version", "verify", "-q", source, "absent")
    fails(USAGE, "nearest is", "load", "-q", "--layuot", source)


def misuse_is_refused():
    src = SCRATCH / "nothing"
    fails(USAGE, "nothing to do")
    fails(USAGE, 'no verb "lss"; nearest is "ls"', "lss")
    fails(USAGE, "is not a verb; to mount it, say where", "/somewhere")
    fails(USAGE, 'no verb "umuont"; nearest is "umount"', "umuont", SCRATCH)
    fails(USAGE, 'no verb "mont"; nearest is "mount"', "mont", src, SCRATCH)
    fails(ENV, '"frobnicate" is neither a verb', "frobnicate", SCRATCH)
    fails(ENV, '"frobnicate" is neither a verb', "frobnicate", src, SCRATCH)
    fails(ENV, "mount point", "frobnicate", SCRATCH / "absent", "--wait")
    fails(USAGE, "nearest is mount", "help", "mont")
    for name in ("load", "save"):
        equal(run("help", f"dcp{name}").stdout, run("help", name).stdout, f"help dcp{name}")
    fails(USAGE, "one of bash, zsh, fish", "help", "--completion", "ksh")
    fails(USAGE, "SOURCE is an empty word", "ls", "")
    fails(USAGE, "MNT is an empty word", "mount", src, "")
    fails(USAGE, "leave one of them out", "mount", "--passthrough", "64", "--no-open", src, SCRATCH)
    fails(USAGE, "--passthrough takes a number from 0 to", "mount", "--passthrough", "64M", src, SCRATCH)
    fails(USAGE, "unmount it and mount it again", src, SCRATCH, "-o", "ro,remount")
    fails(USAGE, "SOURCE is missing", "ls")
    fails(USAGE, "KEY is missing", "cat", src)
    fails(USAGE, "MNT is missing", "umount")
    fails(ENV, "--wait mounts it empty until it is there", "mount", src)
    fails(USAGE, "no option --jsn; nearest is --json", "ls", "--jsn", src)
    fails(USAGE, '"y" is one operand too many', "doctor", "x", "y")
    fails(USAGE, "one of raw, npy, safetensors", "cat", "--as", "pt", src, "k")
    fails(USAGE, "octal number", "mount", src, SCRATCH, "-o", "umask=9")
    fails(USAGE, "no option -o frobnicate", "mount", src, SCRATCH, "-o", "frobnicate")
    fails(USAGE, "never written to", "mount", src, SCRATCH, "-o", "rw")
    fails(USAGE, "never written to", src, SCRATCH, "-o", "noauto,user,rw")
    fails(USAGE, "no verb", "help", "frobnicate")
    fails(USAGE, "is not a mount point", "umount", SCRATCH)
    fails(USAGE, "is a mount of type", "umount", "/proc")
    fails(ENV, "No such file", "umount", SCRATCH / "no" / "such")
    fails(ENV, "No such file", "umount", SCRATCH / "such")
    fails(ENV, "nothing", "ls", src)
    fails(ENV, "No such file", "mount", src, SCRATCH)


def wrong_mount_points_are_refused():
    """What is wrong with a mount point is found before anything is mounted."""
    src = SCRATCH / "source"
    (src / "inside").mkdir(parents=True)
    (SCRATCH / "file").write_text("")
    (SCRATCH / "link").symlink_to(src / "inside")
    fails(USAGE, "would hide it", "mount", src, src)
    fails(USAGE, "lies inside the source", "mount", src, src / "inside")
    fails(USAGE, "lies inside the source", "mount", src, SCRATCH / "link")
    fails(USAGE, "lies inside the source", "mount", src, ".", cwd=src / "inside")
    fails(USAGE, "would hide the source", "mount", src, SCRATCH)
    fails(USAGE, "is not a directory", "mount", src, SCRATCH / "file")
    fails(ENV, "No such file", "mount", src, SCRATCH / "absent")
    full = SCRATCH / "full"
    (full / ".hidden").mkdir(parents=True)
    fails(USAGE, "is not empty", "mount", src, full)


def urls_get_an_answer():
    """A URL is answered with what to do, by every verb that takes a SOURCE."""
    for url, says in (("s3a://b/run/1", "dcpfs ls s3://b/run/1\n"), ("gcs://b/run", "dcpfs ls gs://b/run\n"), ("file:///a/b", "a path already: /a/b\n"),
                      ("az://c", "rclone mount"), ("hdfs://n:9000/x y", "REMOTE:x y "), ("unknown+x://", "REMOTE: "), ("S3://b/run", "rclone mount")):
        for verb in ((), ("mount",)):
            fails(USAGE, says, *verb, url, SCRATCH)
        fails(USAGE, "is a URL, and SOURCE is a path", "ls", url)
        fails(USAGE, says, "cat", url, "key")
    fails(ENV, "No such file", "ls", "no/such://thing")
    (SCRATCH / "s3:").mkdir()
    got = run("ls", "s3://", cwd=SCRATCH)
    check(b"is a URL" not in got.stderr, f"a directory that is called so: {got.stderr}")


def doctor_and_version_agree():
    got = run("doctor", "--json")
    check(got.returncode in (OK, NO), f"doctor: exit {got.returncode}")
    report = json.loads(got.stdout)
    equal(got.returncode, OK if report["can_mount"] else NO, "doctor's exit code is its answer")
    names = [c["name"] for c in report["checks"]]
    for name in ("/dev/fuse", "fusermount3", "allow_other", "kernel", "container", "cache", "open files",
                 "io_uring", "servers", "mpi", "cuda", "NCCL", "CUDA IPC"):
        check(name in names, f"doctor does not look at {name}")
    for c in report["checks"]:
        check(c["state"] == "ok" or c["advice"], f"doctor leaves {c['name']} without advice")
    bad = [c["name"] for c in report["checks"] if c["state"] == "bad"]
    equal(not bad, report["can_mount"], "doctor's answer follows from its lines")
    check(("dcpfs can mount here" in report["summary"]) == (not bad) and all(n in report["summary"] for n in bad), f"doctor: {report['summary']}")
    notes = sum(c["state"] == "note" for c in report["checks"])
    check(f"; {notes} note" in report["summary"] if notes else "note" not in report["summary"], f"doctor: {report['summary']}")
    for source, says in ((GOLDEN / "hf-llama" / "ckpt", ": all that is complete can be read"), (SCRATCH, " cannot be read."),
                         (GOLDEN / "hostile" / "storage-short", ": 1 of 1 version cannot be read, or not whole: storage-short.")):
        about = run("doctor", source)
        check(f"{source}{says}" in " ".join(about.stdout.decode().split()), f"doctor: {about.stdout.decode()[-300:]} does not say {says}")
    text = run("doctor")
    equal(text.returncode, got.returncode, "doctor's two forms agree")
    check(b"\033" not in text.stdout, "doctor paints into a pipe")
    version = data("version", "--json")
    lines = run("version").stdout.decode().splitlines()
    for library, found in version["libraries"].items():
        check(f"{library} {found or 'not found'}" in lines, f"version does not say {library} {found}: {lines}")
    for library in ("libfuse", "sqlite", "jansson", "libarchive", "xxhash", "zlib", "pcre2"):
        check(version["libraries"][library][0].isdigit(), f"version of {library}")
    for library, name in (("libcurl", "libcurl.so.4"), ("expat", "libexpat.so.1"), ("ncurses", "libncursesw.so.6"), ("libcuda", "libcuda.so.1"), ("nccl", "libnccl.so.2")):
        found = version["libraries"][library]
        try:
            ctypes.CDLL(name)
        except OSError:
            check(found is None or library == "libcurl", f"version of {library}, which is not here: {found}")
        else:
            check(found is None or found[0].isdigit(), f"version of {library}: {found}")
            check(found or library != "expat" or not version["libraries"]["libcurl"], "expat is here, and not found")
    check(run("--version").stdout.startswith(f"dcpfs {version['dcpfs']}\n".encode()), "dcpfs --version")


def doctor_notices_a_missing_capability():
    """Where the bounding set lacks CAP_SYS_ADMIN, as in a container by default, root cannot mount either."""
    barred = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-all"]
    if os.geteuid() != 0 or subprocess.run([*barred, "true"], stderr=subprocess.DEVNULL).returncode:
        return
    got = subprocess.run([*barred, DCPFS, "doctor", "--json"], capture_output=True, check=False)
    report = json.loads(got.stdout)
    equal((got.returncode, report["can_mount"]), (NO, False), "doctor without the capability")
    check(any("--cap-add SYS_ADMIN" in (c["advice"] or "") for c in report["checks"] if c["state"] == "bad"),
          f"doctor does not say how to start the container: {report}")


def doctor_notices_a_forbidden_device():
    """Where the mode of the device keeps a user from it, that is said, also in a container."""
    other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if (os.geteuid() != 0 or not os.path.exists("/dev/fuse") or os.stat("/dev/fuse").st_mode & 6 == 6 or
            subprocess.run([*other, DCPFS, "version"], capture_output=True).returncode):
        return
    got = subprocess.run([*other, DCPFS, "doctor", "--json"], capture_output=True, check=False)
    found = {c["name"]: c for c in json.loads(got.stdout)["checks"]}["/dev/fuse"]
    equal((got.returncode, found["state"]), (NO, "bad"), f"{found}")
    check("chmod 0666 /dev/fuse" in found["advice"], f"doctor does not say what to do: {found}")


def closed_outputs_are_no_error():
    """A reader that went away is not an error; a full disk is."""
    read, write = os.pipe()
    os.close(read)
    got = run("help", stdout=write)
    os.close(write)
    equal((got.returncode, got.stderr), (OK, b""), "help into a closed pipe")
    with open("/dev/full", "wb") as full:
        got = run("help", stdout=full)
    equal(got.returncode, ENV, "help onto a full disk")
    check(b"standard output: No space left" in got.stderr, "a full disk is named")
    got = subprocess.run(["sh", "-c", '"$1" help >&-', "sh", DCPFS], capture_output=True)
    equal(got.returncode, OK, "help with stdout closed")


every_verb_has_a_page()
pages_fit_the_terminal()
colours_follow_the_terminal()
quiet_leaves_errors()
misuse_is_refused()
wrong_mount_points_are_refused()
urls_get_an_answer()
doctor_and_version_agree()
doctor_notices_a_missing_capability()
doctor_notices_a_forbidden_device()
closed_outputs_are_no_error()
finish()
