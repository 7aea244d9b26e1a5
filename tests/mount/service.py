# SPDX-License-Identifier: Apache-2.0
"""A mount as a service: metrics, readiness, logs for machines, SIGHUP."""
import ctypes
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import lib
from lib import case, check, equal, outcome, run, wait

sys.path.insert(0, str(lib.ROOT / "tests"))
from openmetrics import parsed  # noqa: E402

SOURCE = lib.GOLDEN / "dcp-fsdp2" / "ckpt"
SERVICE = lib.ROOT / "tools" / "service"


def metrics_agree_with_stats():
    """.dcpfs/metrics is OpenMetrics text, and counts what .dcpfs/stats counts, and how long it took."""
    source = lib.fresh("odd") / 'a "quoted\\name"\nof two lines'
    source.parent.mkdir(exist_ok=True)
    lib.copy(SOURCE, source)
    with lib.mount(source) as m:
        m.settled()
        outcome(m.at / "latest" / "index.json")
        outcome(m.at / "absent")
        os.listdir(m.at / "latest" / "raw")
        text = lib.read(m.at / ".dcpfs" / "metrics").decode()
        check(text.endswith("\n# EOF\n"), "the last line")
        check('source="' in text and "quoted\\\\name\\\"\\nof two" in text, "the source is escaped")
        got, stats = parsed(text), m.stats()
        count = {op: got["dcpfs_request_duration_seconds_count", (("op", op),)] for op in ("lookup", "getattr", "readdir", "open", "read")}
        for op, n in count.items():
            check(0 < n <= stats[op], f"{op}: {n}, stats has {stats[op]}")
            equal(got["dcpfs_request_duration_seconds_bucket", (("op", op), ("le", "+Inf"))], n, f"{op}: the last bucket")
            steps = [v for (name, labels), v in got.items() if name.endswith("_bucket") and dict(labels)["op"] == op]
            equal(steps, sorted(steps), f"{op}: buckets add up")
            check(got["dcpfs_request_duration_seconds_sum", (("op", op),)] > 0, f"{op}: time")
        check(got["dcpfs_request_errors_total", (("error", "ENOENT"),)] >= 0, "errors")
        equal(got["dcpfs_versions", ()], 2, "versions")
        equal(got["dcpfs_versions_incomplete", ()], 1, "incomplete ones")
        check(3 < got["dcpfs_open_descriptors", ()] < 1000, "descriptors")
        check(got["dcpfs_read_bytes_total", ()] > 0, "bytes")
    with lib.mount(source) as m:
        m.settled()
        os.rename(source / "step-20" / "__1_0.distcp", source / "away")
        why = outcome(m.at / "step-20" / "raw" / "model.embed_tokens.weight.bin")[1]
        check(why in ("EIO", "ESTALE", "ENOENT"), f"a read fails: {why}")
        got = parsed(lib.read(m.at / ".dcpfs" / "metrics").decode())
        check(got["dcpfs_request_errors_total", (("error", why),)] >= 1, f"and is counted as {why}")


def ask(family, where, request=b"GET /metrics HTTP/1.1\r\nHost: dcpfs\r\n\r\n"):
    """(head, body) of what the socket answers."""
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(lib.PATIENCE), 0))
        s.connect(where)  # waits for a place in the queue, which it does not with a timeout of Python's
        s.settimeout(lib.PATIENCE)
        s.sendall(request)
        got = b""
        while part := s.recv(65536):
            got += part
    head, _, body = got.partition(b"\r\n\r\n")
    return head.decode(), body.decode()


def metrics_are_served():
    """--metrics-listen answers with the same metrics, at a socket of its owner or a port of this machine."""
    place = lib.fresh("sockets")
    with lib.mount(SOURCE, "--metrics-listen", f"unix:{place}/s") as m:
        m.settled()
        equal(os.stat(place / "s").st_mode & 0o777, 0o600, "mode")
        head, body = ask(socket.AF_UNIX, str(place / "s"))
        check(head.startswith("HTTP/1.1 200 OK") and "application/openmetrics-text; version=1.0.0" in head, head)
        check(f"Content-Length: {len(body.encode())}" in head, "length")
        equal(set(parsed(body)), set(parsed(lib.read(m.at / ".dcpfs" / "metrics").decode())), "the same samples")
        case("clients that read nothing, or say nothing")
        slow = []
        for i in range(30):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.setblocking(False)
            slow.append(s)
            try:
                s.connect(str(place / "s"))
                s.send(b"GET /metrics HTTP/1.1\r\n" + b"\r\n" * (i % 2))
            except BlockingIOError:
                break  # the queue of the kernel is full: others wait
        check(len(os.listdir(m.at / "latest" / "raw")) > 10 and m.stats()["read"] >= 0, "the mount answers")
        for s in slow:
            s.close()
        check(ask(socket.AF_UNIX, str(place / "s"))[0].startswith("HTTP/1.1 200"), "and so does the socket, then")
    equal(os.listdir(place), [], "the socket goes with the mount")
    case("a port")
    log = place / "log"
    with lib.mount(SOURCE, "--metrics-listen", "127.0.0.1:0", "--log-file", log) as m:
        m.settled()
        port = int(re.search(r"metrics at 127\.0\.0\.1:(\d+)", log.read_text())[1])
        check(ask(socket.AF_INET, ("127.0.0.1", port))[1].endswith("# EOF\n"), "metrics")
        case("a port that is taken")
        done = run(lib.PROGRAM, "mount", "--metrics-listen", f"127.0.0.1:{port}", SOURCE, lib.fresh("mnt"), env=lib.environment())
        equal(done.returncode, 3, f"exit code: {done.stderr}")
        check(f"metrics at 127.0.0.1:{port}: Address already in use" in done.stderr, done.stderr)
    case("elsewhere")
    for where in ("0.0.0.0:9", "10.0.0.1:9", "localhost:9", "9", "[::]:9"):
        done = run(lib.PROGRAM, "mount", "--metrics-listen", where, SOURCE, lib.fresh("mnt"), env=lib.environment())
        equal((done.returncode, done.stderr.count("\n")), (2, 1), f"{where}: {done.stderr}")
        check("this machine alone" in done.stderr, done.stderr)
    source = lib.copy(SOURCE, lib.fresh("source") / "ckpt")
    done = run(lib.PROGRAM, "mount", "--metrics-listen", f"unix:{source}/s", source, lib.fresh("mnt"), env=lib.environment())
    equal(done.returncode, 2, f"in the source: {done.stderr}")


def documented_metrics_are_served():
    """The dashboard asks for what is served, and the page has every metric that is, and no other."""
    with lib.mount(SOURCE) as m:
        m.settled()
        text = lib.read(m.at / ".dcpfs" / "metrics").decode()
    families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    served = {name for name, _ in parsed(text)}
    asked = set(re.findall(r"\bdcpfs_\w+", " ".join(re.findall(r'"(?:expr|query)": "((?:[^"\\]|\\.)*)"', (SERVICE / "grafana.json").read_text()))))
    check(len(asked) > 8 and asked <= served, f"the dashboard asks for {sorted(asked - served)}")
    rows = re.findall(r"^\| (`dcpfs_.*?`) \|", (SERVICE / "README.md").read_text(), re.M)
    told = {name for row in rows for name in re.findall(r"`(dcpfs_\w+)", row)}
    equal(told, {name + "_total" * (kind == "counter") for name, kind in families.items()}, "metrics of the page, and of the mount")


def systemd_knows_the_unit():
    """systemd knows every word of the unit, whose example sets what it uses."""
    if not shutil.which("systemd-analyze"):
        return  # a container seldom has systemd
    at = lib.fresh("unit")
    at.mkdir(exist_ok=True)
    text = (SERVICE / "dcpfs@.service").read_text().replace("@bindir@", str(pathlib.Path(lib.PROGRAM).parent))
    for words, want in ((text, ""), (text.replace("RestartSec=", "RestartSecs="), "RestartSecs")):
        (at / "dcpfs@run1.service").write_text(words)
        done = run("systemd-analyze", "verify", "--man=no", at / "dcpfs@run1.service")
        said = "\n".join(line for line in done.stderr.splitlines() if "dcpfs@" in line)  # it looks at units of the machine, too
        check(want in said if want else not said, f"it says: {done.stderr}")
    settings = dict(re.findall(r"^#\t(\w+)=(.*)$", text, re.M))
    equal(set(re.findall(r"\$\{?([A-Z]+)", text)), {*settings, "MAINPID"}, "variables of the unit, and of its example")


# What a pod may have, of https://kubernetes.io/docs/reference/kubernetes-api: name of a field, kind, or the fields below it.
MOUNT = {"name": str, "mountPath": str, "readOnly": bool, "mountPropagation": {"None", "HostToContainer", "Bidirectional"}}
CONTAINER = {"name": str, "image": str, "command": [str], "args": [str], "restartPolicy": {"Always"}, "volumeMounts": [MOUNT],
             "securityContext": {"privileged": bool, "runAsUser": int},
             "startupProbe": {"exec": {"command": [str]}}, "livenessProbe": {"exec": {"command": [str]}}}
POD = {"apiVersion": {"v1"}, "kind": {"Pod"}, "metadata": {"name": str}, "spec": {
    "initContainers": [CONTAINER], "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str, "readOnly": bool}, "emptyDir": {}}]}}


def fits(value, kind, where):
    """A value of the pod is what its field may be."""
    if isinstance(kind, dict):
        check(isinstance(value, dict) and set(value) <= set(kind), f"{where}: {value}")
        for name, part in value.items():
            fits(part, kind[name], f"{where}.{name}")
    elif isinstance(kind, list):
        check(isinstance(value, list) and value, f"{where}: {value}")
        for i, part in enumerate(value):
            fits(part, kind[0], f"{where}[{i}]")
    else:
        check(value in kind if isinstance(kind, set) else type(value) is kind, f"{where}: {value}")


def the_pod_works():
    """kubernetes.yaml is a pod; its commands do with this program what they are there for."""
    python = os.environ.get("DCPFS_TEST_PYTHON") or sys.executable  # of the packages in tests/requirements.txt
    made = run(python, "-c", "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)", SERVICE / "kubernetes.yaml")
    if "No module named 'yaml'" in made.stderr:
        return
    whole = json.loads(made.stdout)
    fits(whole, POD, "pod")
    spec = whole["spec"]
    every = spec["initContainers"] + spec["containers"]
    volumes = {v["name"] for v in spec["volumes"]}
    check({m["name"] for c in every for m in c["volumeMounts"]} == volumes, "volumes are those that are mounted")
    for name in [*(c["name"] for c in every), *volumes, whole["metadata"]["name"]]:
        check(re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name), f"a name of DNS: {name}")
    for c in every:
        inside = [m["mountPath"] for m in c["volumeMounts"]]
        words = " ".join(c.get("command", []) + c.get("args", []) + [w for p in ("startupProbe", "livenessProbe") for w in c.get(p, {"exec": {"command": []}})["exec"]["command"]])
        check(all(re.match("(" + "|".join(inside) + ")(/|$)", path) for path in re.findall(r"(?<=[ ])/(?!dev/)[\w/.]+", words)), f"{c['name']} uses what it mounts: {words}")
    waits, dcpfs, serve = every
    check(dcpfs["securityContext"]["privileged"] and any(m.get("mountPropagation") == "Bidirectional" for m in dcpfs["volumeMounts"]), "it may propagate a mount")
    check(any(m.get("mountPropagation") == "HostToContainer" for m in serve["volumeMounts"]), "which reaches the other")

    source, at = lib.fresh("source"), lib.fresh("mnt")

    def here(words):
        return [w.replace("/source", str(source)).replace("/view", str(at)) for w in words]

    env = lib.environment() | {"PATH": f"{pathlib.Path(lib.PROGRAM).parent}:{os.environ['PATH']}"}
    case("the init container waits")
    lib.copy(SOURCE / "step-30", source / "step-30")  # which is incomplete
    waiting = subprocess.Popen(here(waits["command"]), env=env, stdin=subprocess.DEVNULL)
    time.sleep(2)
    equal(waiting.poll(), None, "while no version is complete")
    lib.copy(SOURCE / "step-20", source / "step-20")
    equal(waiting.wait(lib.PATIENCE), 0, "until one is")
    case("the sidecar")
    words = here(dcpfs["args"])
    if os.geteuid():  # it may not be allowed
        words = [w for i, w in enumerate(words) if w != "allow_other" and words[i + 1:i + 2] != ["allow_other"]]
    m = subprocess.Popen([lib.PROGRAM, *words], env=env, stderr=subprocess.PIPE, text=True)
    for probe in ("startupProbe", "livenessProbe"):
        wait(lambda: run(*here(dcpfs[probe]["exec"]["command"])).returncode == 0, f"{probe} is content")
    check(os.path.isdir(here(serve["args"])[-1]), "the model that is served is there")
    m.terminate()
    equal(m.wait(lib.PATIENCE), 0, f"it ends: {m.stderr.read()}")
    check(run(*here(dcpfs["livenessProbe"]["exec"]["command"])).returncode, "and is said not to live")
    m.stderr.close()


def readiness_is_notified():
    """NOTIFY_SOCKET is told when the mount answers, by a path and by an abstract name; without it nothing is."""
    for name in (str(lib.fresh("notify") / "s"), "\0dcpfs-test-" + str(os.getpid())):
        case(repr(name))
        if name[0] == "/":
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(name)
            manager.settimeout(lib.PATIENCE)
            with lib.mount(SOURCE, prefix=["env", "NOTIFY_SOCKET=" + name.replace("\0", "@")]) as m:
                words = dict(x.split("=", 1) for x in manager.recv(4096).decode().splitlines())
                equal((words["READY"], words["MAINPID"]), ("1", str(m.pid)), "words")
                check(str(m.at) in words["STATUS"], "where")
                check(os.listdir(m.at), "it answers")


def log_lines_are_json():
    """--log-json: each line is an object, in the file and on stderr."""
    file, at = lib.fresh("log") / "log", lib.fresh("mnt")
    file.parent.mkdir(exist_ok=True)
    m = lib.Mount(SOURCE, "--log-json", "--log-file", file, at=at)
    m.unmount()
    lines = list(map(json.loads, file.read_text().splitlines()))
    check(all(set(x) == {"time", "level", "pid", "message"} and x["pid"] == m.pid for x in lines), f"members: {lines}")
    equal([x["level"] for x in lines if "mounted at" in x["message"]], ["info"], "the first")
    equal([x["level"] for x in lines if "config.json" in x["message"]], ["warning"], "a warning")
    equal(list(map(json.loads, m.log().splitlines())), lines, "stderr")
    for words in (["mount", "-f", "--log-json", "/nowhere", at], ["mount", "--log-json", SOURCE, "/nowhere"]):
        done = run(lib.PROGRAM, *words, env=lib.environment())
        equal(done.returncode, 3, f"exit code: {done.stderr}")
        said = list(map(json.loads, done.stderr.splitlines()))
        equal([x["level"] for x in said][:1], ["error"], f"why it did not begin: {said}")
        check("/nowhere: No such file" in said[0]["message"] and not said[0]["message"].startswith("dcpfs:"), f"{said[0]}")


def journal_lines_have_levels():
    """Where stderr is the journal's stream, a line begins with its level."""
    log = lib.fresh("journal") / "log"
    log.parent.mkdir(exist_ok=True)
    at = lib.fresh("mnt")
    with open(log, "wb") as stream:
        st = os.fstat(stream.fileno())
        env = {**lib.environment(), "JOURNAL_STREAM": f"{st.st_dev}:{st.st_ino}"}
        served = subprocess.Popen([lib.PROGRAM, "mount", "-f", SOURCE, at], stderr=stream, env=env)
        wait(lambda: lib.mounted(at), "it is mounted")
        equal(run(lib.PROGRAM, "umount", at, env=lib.environment()).returncode, 0, "umount")
        served.wait(lib.PATIENCE)
    equal(log.read_text(), f"<4>dcpfs: step-20: {lib.NO_CONFIG}\n", "words")
    with open(log, "wb") as stream:
        st = os.fstat(stream.fileno())
        env["JOURNAL_STREAM"] = f"{st.st_dev}:{st.st_ino}"
        subprocess.run([lib.PROGRAM, "mount", "-f", "/nowhere", at], stderr=stream, env=env)
    equal(log.read_text(), "<3>dcpfs: /nowhere: No such file or directory; --wait mounts it empty until it is there\n", "why it did not begin")


def mount_makes_a_directory():
    """mount SOURCE alone makes a directory, prints its name and nothing else, and leaves none when it fails."""
    tmp = lib.fresh("tmp")
    tmp.mkdir(exist_ok=True)
    env = {**lib.environment(), "TMPDIR": str(tmp)}
    done = run(lib.PROGRAM, "mount", SOURCE, env=env)
    at = done.stdout.rstrip("\n")
    equal((done.returncode, os.path.dirname(at)), (0, str(tmp)), f"exit code and place: {done.stderr}")
    equal(os.readlink(at + "/latest"), "step-20", "it answers")
    equal(os.stat(tmp).st_dev != os.stat(at).st_dev, True, "mounted")
    equal(run(lib.PROGRAM, "umount", at, env=env).returncode, 0, "umount")
    os.rmdir(at)
    done = run(lib.PROGRAM, "mount", "--layout", "/nowhere.dcpl", SOURCE, env=env)
    equal((done.returncode != 0, done.stdout, os.listdir(tmp)), (True, "", []), f"nothing is left: {done.stderr}")
    m = subprocess.Popen([lib.PROGRAM, "mount", "-f", SOURCE], env=env, stdout=subprocess.PIPE, text=True)
    at = m.stdout.readline().rstrip("\n")
    wait(lambda: lib.mounted(at), "in the foreground")
    m.terminate()
    equal((m.wait(lib.PATIENCE), os.listdir(tmp)), (0, []), "it ends, and nothing is left")
    m.stdout.close()


def foreign_descriptors_are_mounted():
    """/dev/fd/N is a /dev/fuse that another process, with more rights, has mounted."""
    if os.geteuid():
        return  # only root may call mount()
    at = lib.fresh("mnt")
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    data = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,max_read=1048576".encode()
    equal(libc.mount(b"outside", os.fsencode(at), b"fuse.dcpfs", 7, data), 0, f"mount: {ctypes.get_errno()}")
    for words in (["-f"], []):
        m = subprocess.Popen([lib.PROGRAM, "mount", *words, SOURCE, f"/dev/fd/{fuse}"], pass_fds=[fuse], env=lib.environment(),
                             stderr=subprocess.PIPE, text=True)
        os.close(fuse)
        equal(os.readlink(at / "latest"), "step-20", "it answers")
        check(lib.read(at / "step-20" / "raw" / "model.embed_tokens.weight.bin"), "a tensor")
        pid = json.loads(lib.read(at / ".dcpfs" / "status.json"))["pid"]
        equal(libc.umount2(os.fsencode(at), 0), 0, "umount by the one who mounted")
        equal(m.wait(lib.PATIENCE), 0, f"exit code: {m.stderr.read()}")
        wait(lambda: not lib.alive(pid), "it ends")
        m.stderr.close()
        fuse = os.open("/dev/fuse", os.O_RDWR)
        if words:
            data = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,max_read=1048576".encode()
            equal(libc.mount(b"outside", os.fsencode(at), b"fuse.dcpfs", 7, data), 0, f"mount: {ctypes.get_errno()}")
    os.close(fuse)


def hang_up_rescans_or_ends():
    """SIGHUP makes a mount without a terminal look at its source again; it ends one whose terminal is gone."""
    case("in the background")
    source, at = lib.copy(SOURCE, lib.fresh("source") / "ckpt"), lib.fresh("mnt")
    equal(run(lib.PROGRAM, "mount", source, at, env=lib.environment()).returncode, 0, "mount")
    pid = json.loads(lib.read(at / ".dcpfs" / "status.json"))["pid"]

    def looks():
        return dict(x.split() for x in lib.read(at / ".dcpfs" / "stats").decode().splitlines())["rescans"]

    time.sleep(1)
    before = looks()
    os.kill(pid, signal.SIGHUP)
    wait(lambda: int(looks()) > int(before), "it looks again")
    check(lib.mounted(at), "and goes on")
    equal(run(lib.PROGRAM, "umount", at, env=lib.environment()).returncode, 0, "umount")
    wait(lambda: not lib.alive(pid), "and ends")
    for threads in ("8", "1"):
        case(f"with a terminal, {threads} threads")
        at = lib.fresh("mnt")
        child, terminal = pty.fork()
        if child == 0:
            os.execve(lib.PROGRAM, [str(lib.PROGRAM), "mount", "-f", "--threads", threads, str(source), str(at)], lib.environment())
        wait(lambda: lib.mounted(at) and os.listdir(at), "it answers")
        os.kill(child, signal.SIGHUP)
        equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "exit code")
        check(not lib.mounted(at), "unmounted")
        os.close(terminal)


lib.main(metrics_agree_with_stats, metrics_are_served, documented_metrics_are_served, systemd_knows_the_unit, the_pod_works,
         readiness_is_notified, log_lines_are_json, journal_lines_have_levels, mount_makes_a_directory,
         foreign_descriptors_are_mounted, hang_up_rescans_or_ends)
