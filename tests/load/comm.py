#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that find each other and talk by what torchrun, srun and mpirun set; and what happens when one
of them, or a stranger, does not behave.

usage: comm.py RANKS [FUNCTION...]     RANKS: the program of ranks.c
"""
import concurrent.futures
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import dcp

PROGRAM = os.path.abspath(sys.argv[1])
PATIENCE = 600  # seconds for what should take one
LONGER = 10, 40, 160  # seconds after which something is given up, if what comes before did not fit into less
ALL = ["nodes", "agree", "gather=0", "gather=100000", "split=2", "gather=3", "agree", "back", "agree"]
SOURCE = "tests/golden/dcp-fsdp2/ckpt"
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "SLURM", "OMPI", "PMI", "DCPLOAD")
HOME = tempfile.TemporaryDirectory()
BASE = {k: v for k, v in os.environ.items() if not k.startswith((*LAUNCHERS, "XDG"))} | {"HOME": HOME.name}
NAME = socket.gethostname()  # of this node, which ranks take for the name of any: they meet by TCP
wrong = []
current = threading.local()


def check(good, what):
    if not good:
        wrong.append(what)
        print(f"{current.name}: {what}", flush=True)
    return good


def own_address():
    """One that other machines may reach; None: there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("198.51.100.1", 9))  # nothing is sent
            return s.getsockname()[0]
        except OSError:
            return None


def free_port(n=18):
    """The first of @n ports of which none is in use just now, away from those that systems give out."""
    while True:
        first = 10000 + int.from_bytes(os.urandom(2), "little") % 20000
        socks = []
        try:
            for port in range(first, first + n):
                socks.append(socket.socket())
                socks[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            pass
        finally:
            for s in socks:
                s.close()


class Job:
    """Processes, by rank; their answers."""

    def __init__(self, how="env", host="127.0.0.1", port=None, **env):
        self.how, self.ranks, self.answers = how, {}, {}
        self.env = dict(BASE, MASTER_ADDR=host, MASTER_PORT=str(port or free_port()), DCPLOAD_TIMEOUT="500",
                        TORCHELASTIC_RESTART_COUNT=os.urandom(8).hex()) | env  # another job may have the same port

    def start(self, rank, world, *steps, name=None, torchrun=True, **env):
        full = dict(self.env, **env)
        if torchrun:
            full |= {"RANK": str(env.get("RANK", rank)), "WORLD_SIZE": str(world)}
        full = {k: v for k, v in full.items() if v is not None}
        self.ranks[rank if name is None else name] = subprocess.Popen(
            [PROGRAM, self.how, *steps], env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return self

    def start_all(self, world, *steps, **env):
        for rank in range(world):
            self.start(rank, world, *steps, **env)
        return self

    def end(self, limit=PATIENCE):
        """{rank: what it printed}; None for one that died. Hangs are failures."""
        until = time.monotonic() + limit
        for rank, p in self.ranks.items():
            try:
                out, err = p.communicate(timeout=max(0.1, until - time.monotonic()))
                check(not err, f"rank {rank}: {err}")
                self.answers[rank] = json.loads(out) if out else None
            except subprocess.TimeoutExpired:
                check(False, f"rank {rank} hangs")
                p.kill()
                p.communicate()
                self.answers[rank] = None
        return self

    def good(self, world, what, **expect):
        self.end()
        for rank, a in self.answers.items():
            check(a and a["code"] == 0 and a["rank"] == rank and a["ranks"] == world, f"{what}: rank {rank}: {a}")
            for key, value in expect.items():
                check(a and a[key] == value, f"{what}: rank {rank}: {key} is not {value}: {a}")

    def faults(self, what, code, rank=None, says="", dead=(), alike=True):
        """Where it is not so that all but the dead fail with @code, for the same reason, which is that of @rank."""
        self.end()
        texts, found = set(), []
        for r, a in self.answers.items():
            if r in dead:
                found += [f"{what}: rank {r} lives: {a}"] if a else []
                continue
            if not a or a["code"] != -code:
                found.append(f"{what}: rank {r} without {errno.errorcode[code]}: {a}")
                continue
            if rank is not None and a["error_rank"] != rank:
                found.append(f"{what}: rank {r}: error_rank is not {rank}: {a}")
            if says not in a["text"]:
                found.append(f"{what}: rank {r} does not say \"{says}\": {a}")
            texts.add(a["text"])
        return found + ([f"{what}: texts differ: {texts}"] if alike and len(texts) != 1 else [])

    def bad(self, *args, **kwargs):
        for fault in self.faults(*args, **kwargs):
            check(False, fault)


def at_last(attempt):
    """@attempt(seconds) is something that is given up after so long, and returns what was wrong. What has to come
    before takes longer on a busy machine: if it does not fit, there is more time for it."""
    for seconds in LONGER:
        found = attempt(seconds)
        if not found:
            return
        print(f"{current.name}: within {seconds} s: {found}", flush=True)
    for fault in found:
        check(False, fault)


def side_by_side(*calls):
    name = current.name
    with concurrent.futures.ThreadPoolExecutor(len(calls), initializer=lambda: setattr(current, "name", name)) as threads:
        for done in [threads.submit(call) for call in calls]:
            done.result()


# ---- that they talk ----

def ranks_talk():
    for world in (1, 2, 3, 8):
        Job().start_all(world, *ALL).good(world, f"{world} ranks", comm="tcp", nodes=1)
    Job("auto").start_all(2, "agree").good(2, "auto", comm="tcp")
    Job("auto").start(0, 1, "agree", torchrun=False).good(1, "auto without a launcher", comm="alone")


def groups_load_beside_each_other():
    """Groups of a job load beside each other, what was rank 0 being another of them, and all of it after them."""
    Job(LOAD_SOURCE=SOURCE).start_all(4, "split=2", "load", "back", "load").good(4, "sub-groups that load")


def objects_reach_every_rank():
    """The bytes of objects, as the file has them."""
    for n in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            Job(LOAD_SOURCE=SOURCE, LOAD_OBJECTS=folder).start_all(n, "objects").good(n, "objects")
            for what in dcp.differ(f"{SOURCE}/step-20", folder, n):
                check(False, what)


def the_coordinator_decides():
    """The rank that finds the version: what it is told counts, and all name the same one."""
    for n, rank in (1, 0), (2, 1), (4, 2):
        job = Job(LOAD_SOURCE=SOURCE)
        for r in range(n):
            job.start(r, n, f"coordinator={rank}", "load", LOAD_VERSION="step-10" if r == rank else None)
        job.good(n, f"rank {rank} of {n} coordinates", version="step-10")
    job = Job(LOAD_SOURCE=SOURCE).start(0, 2, "load").start(1, 2, "load", LOAD_VERSION="step-10")
    job.bad("rank 0 coordinates", errno.EINVAL, 1, "rank 0 opens version step-20, this rank was asked for step-10")
    for n in (1, 3):
        job = Job(LOAD_SOURCE=SOURCE).start_all(n, f"coordinator={n}", "load")
        job.bad("no such rank", errno.EINVAL, says=f"there is no rank {n} to be the coordinator, only 0 to {n - 1}")
    for steps in (["coordinator=0"], ["coordinator=1"], ["coordinator=2"]), (["coordinator=1"], ["coordinator=0"], ["coordinator=1"]), \
            (["coordinator=2"], ["coordinator=2"], ["coordinator=0"]):
        job = Job(LOAD_SOURCE=SOURCE)
        for r in range(3):
            job.start(r, 3, *steps[r], "load")
        job.bad(f"different coordinators: {steps}", errno.EINVAL, says="dcpload_config.coordinator is ")


def differing_options_are_named():
    """Ranks that set an option differently are told which, and both values; a rank that cannot add what it wants fails all."""
    for which, values, says in ("exchange", (1, 3), 'dcpload_config.exchange is "never" on rank 0 and "all" on rank 1'), \
            ("flags", (2, 3), 'DCPLOAD_STRICT is "not set" on rank 0 and "set" on rank 1'):
        job = Job(LOAD_SOURCE=SOURCE)
        for r in range(2):
            job.start(r, 2, f"{which}={values[r]}", "load")
        job.bad(which, errno.EINVAL, says=says + ": all ranks need the same")
    for rank in range(3):
        job = Job(LOAD_SOURCE=SOURCE).start_all(3, f"wrong={rank}", "load")
        job.bad(f"rank {rank} gives up", errno.ENOENT, rank, 'no tensor "nothing"')


def late_ranks_are_waited_for():
    job = Job().start(1, 3, *ALL).start(2, 3, "late=2", *ALL)
    time.sleep(0.6)
    job.start(0, 3, *ALL).good(3, "rank 0 is the last to come")


def late_welcomes_are_counted():
    """Rank 0 counts a rank that has shown who it is, however busy that rank's machine is then."""
    Job(LOAD_BUSY="1").start_all(3, "agree").good(3, "welcomes are read late")


def large_messages_arrive():
    Job().start_all(3, "gather=6000000").good(3, "more than a round of gather and a socket hold")


def hosts_are_found():
    Job(host="localhost").start_all(3, *ALL).good(3, "localhost")
    Job(host=NAME).start_all(3, *ALL).good(3, "the name of this host")
    if own_address():
        Job(host=own_address()).start_all(3, *ALL).good(3, "an address of this host")
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        print("IPv6 left out: this machine has none")
        return
    Job(host="::1").start_all(3, *ALL).good(3, "IPv6")


def many_ranks_meet():
    """More ranks than a process may have files open, by the usual soft limit or a lower one; and than it may have at all."""
    if b"__asan_init" in open(PROGRAM, "rb").read() or b"__tsan_init" in open(PROGRAM, "rb").read():
        print("1,100 ranks left out: a sanitizer takes too much memory for each")
        return
    for host, n, soft in ("127.0.0.1", 1100, 1024), (NAME, 300, 256):
        for hard, steps in (None, ["agree", "gather=10", "agree=7"]), (soft - 24, []):
            def limit(soft=soft, hard=hard):
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard or soft), hard or resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            p = subprocess.run([PROGRAM, str(n), "env", *steps], env=Job(host=host).env, capture_output=True, text=True, preexec_fn=limit,
                               check=False, timeout=PATIENCE)
            said = [json.loads(line) for line in p.stdout.splitlines()]
            check(len(said) == n and not p.stderr, f"{n} ranks at {host}, {hard}: {len(said)} answers; {p.stderr}")
            code, says = (errno.EIO, "rank 7 was told to fail") if steps else (errno.EMFILE, f"rank 0 needs a connection to each of {n} ranks, but may open")
            for a in said:
                if not check(a["code"] == -code and says in a["text"], f"{n} ranks at {host}, {hard}: {a}"):
                    break


def launchers_are_understood():
    job = Job("auto")
    job.env |= {"MASTER_ADDR": "", "MASTER_PORT": "", "SLURM_JOB_ID": str(free_port()), "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "localhost,node[01-07]", "SLURM_STEP_NUM_TASKS": "2"}
    for rank in range(2):
        job.start(rank, 2, *ALL, torchrun=False, SLURM_PROCID=str(rank))
    job.good(2, "srun", comm="tcp")
    job = Job("env")
    job.env |= {"MASTER_ADDR": "", "MASTER_PORT": "", "PMIX_NAMESPACE": str(free_port()),
                "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    for rank in range(2):
        job.start(rank, 2, *ALL, torchrun=False, OMPI_COMM_WORLD_RANK=str(rank))
    job.good(2, "mpirun, without MPI", comm="tcp")
    Job(DCPLOAD_PORT=str(free_port())).start_all(2, *ALL).good(2, "DCPLOAD_PORT")


def jobs_share_ports():
    port = free_port(40)
    jobs = [Job(port=port, TORCHELASTIC_RUN_ID=name).start_all(3, *ALL) for name in ("one", "other")]
    for job in jobs:
        job.good(3, "another job on the same ports")


# ---- that they fail together ----

def failures_fail_all():
    for world, rank in ((1, 0), (2, 1), (4, 0), (4, 3)):
        Job().start_all(world, f"agree={rank}").bad(f"rank {rank} of {world} fails", errno.EIO,
                                                    rank if world > 1 else None, "was told to fail")


def lack_of_memory_fails_all():
    """However early rank 1 runs out of memory, the others do not wait for it."""
    jobs = [Job().start_all(3, "agree", f"memory={n}", step) for n in range(1, 9) for step in ("split=1", "split=2")]
    failed = 0
    for i, job in enumerate(jobs):
        job.end()
        codes = [a and a["code"] for a in job.answers.values()]
        if check(len(set(codes)) == 1, f"allocation {i // 2 + 1}: {job.answers}") and codes[0]:
            job.bad(f"allocation {i // 2 + 1} of rank 1 fails", errno.ENOMEM, 1, "rank 1")
            failed += 1
    check(failed >= 10, f"only {failed} allocations failed")


def killed_ranks_fail_all():
    jobs = []
    for victim in (0, 2):
        for then in (["agree"], ["gather=100000"], ["nodes"], ["split=2"], ["late=0", "late=1", "agree"]):
            for before in ([], ["agree"]):
                jobs.append((victim, then, Job().start_all(4, *before, f"die={victim}", *then)))
                if len(jobs) == 5:
                    end_killed(jobs)
        # It dies in a sub-group: those of the group know at once, the others where all meet again.
        Job().start_all(4, "split=1", f"die={3 - victim}", "agree").bad(
            f"rank {victim} dies in a sub-group", errno.ECONNRESET, says="has ended or died", dead=[victim])
    end_killed(jobs)


def forged_frames_fail_all():
    """A rank that has the secret and then sends frames of its own making fails the job, with one message, and no more."""
    jobs = [(kind, liar, Job().start_all(3, "agree", f"forge-{kind}={liar}", *steps))
            for liar in (0, 2) for kind in ("here", "long", "code", "noise") for steps in (["agree"], ["gather=100000"])]
    for kind, liar, job in jobs:
        job.bad(f"rank {liar} forges {kind}", errno.EPROTO, liar, dead=[liar], alike=liar != 0)
        check(all(len(a["text"]) < 1024 for a in job.answers.values() if a), f"rank {liar} forges {kind}: long texts")


def end_killed(jobs):
    for victim, then, job in jobs:
        job.bad(f"rank {victim} dies before {then}", errno.ECONNRESET, victim, f"rank {victim} at ", dead=[victim])
    jobs.clear()


def ranks_killed_early_fail_all():
    def attempt(seconds):
        job = Job(DCPLOAD_TIMEOUT=str(seconds + 10)).start(0, 4).start(1, 4).start(2, 4)
        time.sleep(seconds / 10)  # until rank 1 has come to rank 0
        job.ranks[1].send_signal(signal.SIGKILL)
        return job.faults("rank 1 dies before rank 3 came", errno.ECONNRESET, 1,
                          "rank 1 has ended or died before all ranks were connected", dead=[1])
    at_last(attempt)


def hanging_ranks_fail_all():
    def hang(victim, step, late):
        def attempt(seconds):
            job = Job().start_all(4, "agree", f"timeout={seconds * 1000}", *["late=0"] * late, f"hang={victim}", step)
            p = job.ranks.pop(victim)
            found = job.faults(f"rank {victim} hangs", errno.ETIMEDOUT, victim, f"did not answer within {seconds}.0 s")
            p.kill()
            p.communicate()
            return found
        return lambda: at_last(attempt)
    side_by_side(hang(0, "agree", 0), hang(0, "split=2", 0), hang(2, "agree", 0), hang(2, "split=2", 0), hang(2, "agree", 6))


def missing_ranks_are_named():
    def one(what, code, says, **env):
        at_last(lambda seconds: Job(DCPLOAD_TIMEOUT=str(seconds), **env).start(1, 2).faults(what, code, says=says))
    side_by_side(
        lambda: at_last(lambda seconds: Job(DCPLOAD_TIMEOUT=str(seconds)).start(0, 5).start(3, 5).faults(
            "ranks 1, 2 and 4 do not come", errno.ETIMEDOUT, says=f"ranks 1-2, 4 of 5 did not connect to rank 0 within {seconds} s")),
        lambda: one("no rank 0", errno.ETIMEDOUT, "rank 1 did not find rank 0 at 127.0.0.1"),
        lambda: one("no such host", errno.EHOSTUNREACH, "no-such-host.invalid, where rank 0 should be: ", host="no-such-host.invalid"))


def disagreeing_ranks_are_refused():
    Job().start(0, 3).start(1, 3).start(2, 4).bad(
        "one rank of another number", errno.EPROTO, says="rank 2 was started as one of 4 ranks, rank 0 as one of 3")
    Job().start(0, 3).start(1, 3).start(1, 3, name="again").bad(
        "the same rank twice", errno.EPROTO, says="two processes were started as rank 1 of 3")
    Job().start(0, 2, "split=1").start(1, 2, "nodes").bad("other functions", errno.EPROTO, says="do not call the same functions")


def wrong_variables_are_named():
    for env, says in (({"RANK": "x"}, 'RANK is "x"'), ({"RANK": "2"}, 'RANK is 2, but WORLD_SIZE is 2'),
                      ({"RANK": "-1"}, 'RANK is "-1"'), ({"WORLD_SIZE": "0"}, 'WORLD_SIZE is "0"'),
                      ({"MASTER_ADDR": None}, "MASTER_ADDR does not say"), ({"MASTER_PORT": "70000"}, "MASTER_PORT"),
                      ({"DCPLOAD_PORT": "0"}, "DCPLOAD_PORT"), ({"DCPLOAD_TIMEOUT": "soon"}, "DCPLOAD_TIMEOUT")):
        job = Job()
        job.start(0, 2, torchrun=False, **dict({"RANK": "0", "WORLD_SIZE": "2"}, **env))
        job.bad(str(env), errno.EINVAL, says=says)
    job = Job("auto")
    job.start(0, 2, torchrun=False, RANK="0").bad("half of torchrun's", errno.EINVAL, says="WORLD_SIZE does not say of how many")
    Job().start(0, 2, torchrun=False, MASTER_ADDR=None).bad("no launcher", errno.ENOENT, says="torchrun sets RANK")
    Job("smoke").start(0, 1).bad("no such transport", errno.EINVAL, says='no transport "smoke"')
    with socket.create_server((socket.gethostbyname(NAME), 0)) as s:
        port = s.getsockname()[1]
        Job(host=NAME, DCPLOAD_PORT=str(port)).start(0, 2).bad("the port is taken", errno.EADDRINUSE, says=f"port {port}")


# ---- strangers ----

def secrets_must_agree():
    secret = "open sesame " + "x" * 100
    Job(DCPLOAD_SECRET=secret).start_all(3, *ALL).good(3, "a secret")
    def differ(other):
        def attempt(seconds):
            job = Job(DCPLOAD_SECRET=secret, DCPLOAD_TIMEOUT=str(seconds)).start(0, 3).start(1, 3).start(2, 3, DCPLOAD_SECRET=other)
            found = job.faults(f"rank 2 has the secret {other}", errno.ETIMEDOUT, says="DCPLOAD_SECRET", alike=False)
            texts = [a and a["text"] for a in job.answers.values()]
            if texts[0] != texts[1] or "rank 2 of 3 did not connect" not in str(texts[0]):
                found.append(f"texts: {texts}")
            return found
        return lambda: at_last(attempt)
    side_by_side(differ("closed"), differ(None), differ(""))


def users_have_a_secret():
    """Where no secret is given, ranks that meet by TCP have that of a file which only their user can read."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as other:
        path = os.path.join(home, ".config/dcpfs/secret")
        for what in ("which is made", "which is there"):
            Job(host=NAME, HOME=home).start_all(4, *ALL).good(4, f"a secret of the user, {what}")
            stat = os.stat(path)
            check(stat.st_mode & 0o777 == 0o600 and stat.st_size == 64, f"the file: {stat}")
            check(os.listdir(os.path.dirname(path)) == ["secret"], f"files: {os.listdir(os.path.dirname(path))}")
        at_last(lambda seconds: Job(host=NAME, DCPLOAD_TIMEOUT=str(seconds)).start(0, 2, HOME=home).start(1, 2, HOME=other).faults(
            "homes that are not shared", errno.ETIMEDOUT, says="DCPLOAD_SECRET can give all ranks the same", alike=False))
        for mode, where in (0o644, path), (0o777, os.path.dirname(path)):
            os.chmod(where, mode)
            Job(host=NAME, HOME=home).start_all(2).bad(f"others can read or write {where}", errno.EPERM, says="set DCPLOAD_SECRET to a text")
            os.chmod(where, mode & 0o700)
        os.truncate(path, 10)
        Job(host=NAME, HOME=home).start_all(2).bad("it is cut", errno.EPERM, says="has less than 64 bytes")
        os.remove(path)
        os.symlink("/proc/version", path)
        Job(host=NAME, HOME=home).start_all(2).bad("it is a link", errno.EPERM, says=f"{NAME} can be reached from other nodes")
    none = {"XDG_CONFIG_HOME": "/dev/null/none"}
    Job(host=NAME, **none).start_all(2).bad("no place for a secret", errno.EPERM, says="Not a directory")
    Job(host=NAME, LOAD_INSECURE="1", **none).start_all(2, *ALL).good(2, "no secret, and any process is let in")
    Job(**none).start_all(2, *ALL).good(2, "no secret, on one node")
    job = Job("env", host=NAME, **none, OMPI_MCA_orte_precondition_transports="0123456789abcdef-0123456789abcdef")
    for rank in range(2):
        job.start(rank, 2, *ALL, torchrun=False, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2")
    job.good(2, "the key of mpirun")


def listening(process):
    """Addresses at which it listens, in hexadecimal digits."""
    inodes = set()
    for fd in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{process.pid}/fd/{fd}"))
        except OSError:
            pass
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}", encoding="ascii")]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]


def rank_0_listens_at_its_address():
    """Rank 0 listens where MASTER_ADDR says, and nowhere else; on one node at no port at all."""
    own = own_address()
    hosts = {"localhost": [], "127.0.0.1": [], "::1": []}
    if own:
        hosts[own] = [socket.inet_aton(own)[::-1].hex().upper()]
    try:
        here = sorted({a[4][0] for a in socket.getaddrinfo(NAME, None, socket.AF_INET, socket.SOCK_STREAM)})
        hosts[NAME] = [socket.inet_aton(a)[::-1].hex().upper() for a in here]
    except OSError:
        pass
    for host, want in hosts.items():
        job = Job(host=host).start(0, 2)
        until = time.monotonic() + (PATIENCE if want else 1)
        got = []
        while time.monotonic() < until and not (want and got):
            time.sleep(0.05)
            got = sorted(a for a in listening(job.ranks[0]) if len(a) == 8 or set(a) == {"0"})
        check(got == sorted(want), f"rank 0 at {host} listens at {got}, expected {want}")
        job.ranks[0].kill()
        job.ranks[0].communicate()


def other_users_are_refused():
    """On one node a process of another user is refused as a rank, and as rank 0; with a secret of the user's it may be."""
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    if os.geteuid() != 0 or subprocess.run([*other, PROGRAM, "x"], check=False, capture_output=True).returncode not in (0, 1):
        print("other users left out: that takes root, and a program that others can run")
        return
    def squat(seconds):
        port = free_port()
        squatter = subprocess.Popen([*other, sys.executable, "-c", f"""
import socket
s = socket.socket(socket.AF_UNIX)
s.bind("\\0dcpload-{port + 1}")
s.listen()
print("there", flush=True)
print(s.accept()[0].recv(100))"""], stdout=subprocess.PIPE, text=True)
        squatter.stdout.readline()
        found = Job(port=port, DCPLOAD_TIMEOUT=str(seconds)).start(1, 2).faults(
            "a rank 0 of another user", errno.ETIMEDOUT, says="found a process of another user")
        if found:
            squatter.kill()
        sent = squatter.communicate()[0]
        return found or ([] if sent == "b''\n" else [f"another user was sent {sent}"])

    # What the kernel says of a process that knows the name: nothing has to be right in what it sends.
    def intrude(seconds):
        port = free_port()
        job = Job(port=port, DCPLOAD_TIMEOUT=str(seconds)).start(0, 2)
        said = subprocess.run([*other, sys.executable, "-c", f"""
import socket, time
for i in range({seconds} * 10):
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect("\\0dcpload-{port + 1}")
        print(s.recv(100))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)"""], capture_output=True, text=True, check=False)
        found = [] if said.stdout == "b''\n" else [f"a stranger was answered: {said}"]
        return found + job.faults("a rank of another user", errno.ETIMEDOUT, says="1 connection of another user refused")

    def join(secret, seconds):
        job = Job(DCPLOAD_SECRET=secret, DCPLOAD_TIMEOUT=str(seconds))
        job.start(0, 2, *ALL[1:2])
        job.ranks[1] = subprocess.Popen([*other, PROGRAM, "env", *ALL[1:2]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={k: v for k, v in job.env.items() if v is not None} | {"RANK": "1", "WORLD_SIZE": "2"})
        return job
    side_by_side(lambda: at_last(squat), lambda: at_last(intrude), lambda: join("a secret", 500).good(2, "ranks of two users with a secret"),
                 lambda: at_last(lambda seconds: join(None, seconds).faults("ranks of two users without", errno.ETIMEDOUT, alike=False)))


class Stranger:
    """Listens on a port in front of rank 0's, and treats each connection as @manner says."""

    def __init__(self, port, manner):
        self.sock = socket.create_server((socket.gethostbyname(NAME), port))
        self.manner, self.heard, self.conns = manner, b"", []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                conn = self.sock.accept()[0]
                self.conns.append(conn)
                threading.Thread(target=self.serve, args=[conn], daemon=True).start()
            except OSError:
                return

    def serve(self, conn):
        try:
            if self.manner == "close":
                conn.close()
            elif self.manner == "garbage":
                conn.sendall(os.urandom(1000))
            while self.manner != "close" and (got := conn.recv(1000)):
                self.heard += got
                if self.manner == "echo":
                    conn.sendall(got)
                elif self.manner == "mimic":  # the first half right, then nothing that could be a proof
                    conn.sendall(b"dcpload!" + bytes(4) + b"\1\0\0\0" + bytes(32) + bytes(256))
                elif self.manner == "reject":
                    conn.sendall(b"dcpload!" + b"\2\0\0\0" + b"\1\0\0\0" + bytes(32))
        except OSError:
            pass

    def end(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        for conn in self.conns:
            conn.close()


def let_listen(*manners):
    """Strangers, and the port before theirs."""
    while True:
        port, there = free_port(), []
        try:
            for manner in manners:
                there.append(Stranger(port + 1 + len(there), manner))
            return port, there
        except OSError:  # another program took one
            for s in there:
                s.end()


def listening_strangers_are_passed():
    port, there = let_listen("silent", "close", "garbage", "echo", "mimic", "reject")
    secret = "open sesame"
    job = Job(host=NAME, port=port, DCPLOAD_SECRET=secret)
    job.start(2, 3, *ALL).start(1, 3, *ALL)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and any(s.manner != "close" and b"dcpload?" not in s.heard for s in there):
        time.sleep(0.02)
    job.start(0, 3, *ALL).good(3, "strangers on the first ports")
    for s in there:
        check(secret.encode() not in s.heard, f"the secret was told to a stranger ({s.manner})")
        check(s.manner == "close" or b"dcpload?" in s.heard, f"no rank came to the stranger ({s.manner})")
        s.end()
    port, there = let_listen("mimic")
    at_last(lambda seconds: Job(host=NAME, port=port, DCPLOAD_TIMEOUT=str(seconds)).start(1, 2).faults(
        "only a stranger", errno.ETIMEDOUT, says="another secret"))
    there[0].end()


def connecting_strangers_are_dropped():
    port = free_port()
    job = Job(host=NAME, DCPLOAD_PORT=str(port)).start(0, 3, *ALL)
    conns = []
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and len(conns) < 300:
        try:
            conns.append(socket.create_connection((NAME, port), timeout=10))
        except OSError:
            time.sleep(0.02)
    check(len(conns) == 300, f"only {len(conns)} strangers could connect")
    hello = b"dcpload?" + b"\1\0\0\0" + b"\1\0\0\0" + b"\3\0\0\0" + bytes(4)
    for i, c in enumerate(conns):
        try:
            c.send([b"", b"G", b"GET / HTTP/1.1\r\n\r\n" + bytes(100), hello + bytes(64), os.urandom(2000)][i % 5])
        except OSError:
            pass
    job.start(1, 3, *ALL).start(2, 3, *ALL).good(3, "300 strangers at the door")
    for c in conns:
        c.close()


TESTS = [many_ranks_meet, ranks_talk, groups_load_beside_each_other, objects_reach_every_rank, the_coordinator_decides,
         differing_options_are_named, late_ranks_are_waited_for, late_welcomes_are_counted, large_messages_arrive,
         hosts_are_found, launchers_are_understood, jobs_share_ports, failures_fail_all, lack_of_memory_fails_all,
         killed_ranks_fail_all, forged_frames_fail_all, ranks_killed_early_fail_all, hanging_ranks_fail_all,
         missing_ranks_are_named, disagreeing_ranks_are_refused, wrong_variables_are_named, secrets_must_agree,
         users_have_a_secret, rank_0_listens_at_its_address, other_users_are_refused, listening_strangers_are_passed,
         connecting_strangers_are_dropped]


def run(test):
    began = time.monotonic()
    current.name = test.__name__
    test()
    print(f"{current.name}: {time.monotonic() - began:.1f} s", flush=True)


# They do little but wait.
with concurrent.futures.ThreadPoolExecutor(6) as pool:
    chosen = [test for test in TESTS if test.__name__ in sys.argv[2:] or not sys.argv[2:]]
    for result in [pool.submit(run, test) for test in chosen]:
        result.result()
print(f"{len(wrong)} wrong")
sys.exit(1 if wrong else 0)
