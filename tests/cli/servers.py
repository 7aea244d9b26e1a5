#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real servers: moto, rclone's serve s3 and nginx. What they show of golden checkpoints equals the files.

    servers.py DCPFS [moto|rclone|nginx ...]

moto and rclone are of the packages in tests/requirements.txt (DCPFS_TEST_PYTHON), nginx is Debian's.
"""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import compared
from cli import BAD, ENV, OK, SCRATCH, check, data, equal, fails, finish, run, write
from compared import ORIGINS, exported, loaded, mounted, same
from served import KEYS, TOP, skip_without_libcurl

PYTHON = pathlib.Path(os.environ.get("DCPFS_TEST_PYTHON", sys.executable))
NGINX = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
FUSE = os.access("/dev/fuse", os.R_OK | os.W_OK)
SOURCES = ("composer-ranks/ckpt", "dcp-fsdp2/ckpt", "hf-llama/ckpt/llama", "megatron-dist/ckpt", "torch-save/ckpt")
SITE = SCRATCH / "site"
compared.RANKS = [2]


@contextlib.contextmanager
def started(words, says=None, ready=lambda: True, **env):
    """The process, while it serves: and the match of what it says of itself. None: it did not start."""
    log = SCRATCH / f"server-{os.urandom(4).hex()}"
    with open(log, "wb") as out:
        child = subprocess.Popen([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ, **env))
    try:
        found, end = None, time.monotonic() + 120
        while not found and child.poll() is None and time.monotonic() < end:
            found = re.search(says, log.read_text(errors="replace")) if says else ready()
            time.sleep(0.05)
        if not found:
            print(f"{words[0]} does not answer: {log.read_text(errors='replace')[-2000:]}")
        yield found
    finally:
        child.terminate()
        child.wait()


def compare(*sources):
    """All verbs, of some goldens."""
    for source in sources:
        listed = same(source, "ls", "ls", "--json")[1]
        check(len(listed) > 20, f"{source} is listed: {listed}")
        same(source, "ls of a version", "ls", "--json", "latest")
        key = data("ls", "--json", TOP / source, "latest")["tensors"][-1]["key"]
        check(same(source, "cat", "cat", "latest", key)[1], f"{source}: {key} has text")
        same(source, "verify", "verify", "latest", "--record", "-")
        exported(source)
        loaded(source)
        if FUSE:
            mounted(source)


def s3_large(bucket):
    """A file of more than a server may send whole: in parts, in order and as one tensor."""
    names = [f"w{i}" for i in range(6)]
    write(SITE / bucket / "large/model.safetensors", {n: ("F32", [1 << 19], os.urandom(2 << 20)) for n in names})
    return SITE / bucket / "large"


def compare_large(url, files):
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    for words in ("cat", "latest", "w3", "--as", "raw"), ("verify", "latest", "--record", "-"):
        a, b = run(words[0], files, *words[1:], "--no-cache"), run(words[0], url, *words[1:], "--no-cache")
        equal((b.returncode, b.stdout), (a.returncode, a.stdout.replace(str(files.resolve()).encode(), url.encode())), f"{words} of {url}: {b.stderr}")
        check(a.returncode == OK, f"{words} of files: {a.stderr}")


def fill(url, top, bucket):
    """Put the files below @top into a new bucket, by Amazon's own client."""
    script = """import boto3, pathlib, sys
url, top, bucket, *new = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
if new:
    s3.create_bucket(Bucket=bucket)
for path in pathlib.Path(top).rglob("*"):
    if path.is_file():
        s3.put_object(Bucket=bucket, Key=path.relative_to(top).as_posix(), Body=path.read_bytes())
"""
    got = subprocess.run([PYTHON, "-c", script, url, top, bucket, "new"], stdin=subprocess.DEVNULL, capture_output=True, timeout=200)
    check(got.returncode == 0, f"filling the bucket: {got.stderr.decode()[-800:]}")


def goldens(to):
    for source in SOURCES:
        shutil.copytree(TOP / source, to / source)


def moto_serves_the_same():
    with started([PYTHON.parent / "moto_server", "-H", "127.0.0.1", "-p", "0"], r"Running on (http://127\.0\.0\.1:\d+)") as at:
        if not check(at, "moto starts"):
            return
        os.environ["AWS_ENDPOINT_URL"] = at[1]
        goldens(SITE / "moto")
        large = s3_large("moto")
        fill(at[1], SITE / "moto", "moto")
        ORIGINS.clear()
        ORIGINS["moto"] = lambda path: f"s3://moto/{path}"
        compared.OWN_TIMES = True
        compare(*SOURCES)
        compared.OWN_TIMES = False
        compare_large("s3://moto/large", large)
        # A mount that has the old object open: ESTALE, and never bytes of both.
        if FUSE:
            top = SCRATCH / "mnt-moto"
            top.mkdir()
            got = run("mount", "s3://moto/large", top, "--no-cache")
            check(got.returncode == OK, f"mount: {got.stderr}")
            try:
                with open(top / "latest/raw/w0.bin", "rb") as f:
                    s3_large("moto")
                    subprocess.run([PYTHON, "-c", "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1').put_object("
                                    "Bucket='moto', Key='large/model.safetensors', Body=open(sys.argv[2], 'rb').read())", at[1], large / "model.safetensors"],
                                   check=True, timeout=100)
                    try:
                        equal(f.read(), "ESTALE", "a read of what was written over")
                    except OSError as e:
                        equal(e.strerror, "Stale file handle", "a read of what was written over")
            finally:
                run("umount", top)
        compare_large("s3://moto/large", large)
        # What is saved into it can be loaded.
        got = run("export", TOP / "dcp-fsdp2/ckpt", "latest", "s3://moto/saved", "--as", "safetensors", "--verify")
        check(got.returncode == OK, f"export to moto: {got.stderr}")
        out = SCRATCH / "saved"
        run("export", TOP / "dcp-fsdp2/ckpt", "latest", out, "--as", "safetensors")
        digest = [run("verify", s, "latest", "--record", "-").stdout.split(b"\n")[1:] for s in (out, "s3://moto/saved")]
        check(digest[0] == digest[1], f"what was saved: {digest}")


def rclone_serves_the_same():
    goldens(SITE / "rclone")
    large = s3_large("rclone")
    with started([PYTHON.parent / "rclone", "serve", "s3", "--addr", "127.0.0.1:0", "--auth-key", ",".join(KEYS), SITE], r"\[(http://127\.0\.0\.1:\d+)/\]",
                 RCLONE_CONFIG="/dev/null") as at:
        if not check(at, "rclone starts"):
            return
        os.environ["AWS_ENDPOINT_URL"] = at[1]
        ORIGINS.clear()
        ORIGINS["rclone"] = lambda path: f"s3://rclone/{path}"
        fails(ENV, "HTTP 403", "ls", "s3://rclone/dcp-fsdp2/ckpt", AWS_SECRET_ACCESS_KEY="another")
        compare(*SOURCES)
        compare_large("s3://rclone/large", large)


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def certificates(to):
    """An authority of the test's own, and what it says of this machine."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    (to / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for words in (["req", "-x509", *key, "-days", "2", "-subj", "/CN=authority", "-keyout", to / "ca.key", "-out", to / "ca.pem"],
                  ["req", *key, "-subj", "/CN=127.0.0.1", "-keyout", to / "key.pem", "-out", to / "asked"],
                  ["x509", "-req", "-in", to / "asked", "-CA", to / "ca.pem", "-CAkey", to / "ca.key", "-CAcreateserial", "-days", "2",
                   "-extfile", to / "names", "-out", to / "cert.pem"]):
        subprocess.run(["openssl", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=100)


CONFIG = """daemon off; pid {top}/pid; error_log stderr; worker_processes 1; {user}
events {{ worker_connections 256; }}
http {{
	access_log off; default_type application/octet-stream;
	client_body_temp_path {top}/b; proxy_temp_path {top}/p; fastcgi_temp_path {top}/f; uwsgi_temp_path {top}/u; scgi_temp_path {top}/s;
	limit_req_zone $server_port zone=few:1m rate=20r/s;
	limit_conn_zone $server_port zone=narrow:1m;
	server {{
		listen 127.0.0.1:{port} ssl; root {site}; ssl_certificate {top}/cert.pem; ssl_certificate_key {top}/key.pem;
		location /nginx/ {{ autoindex on; }}
		location /json/ {{ alias {site}/nginx/; autoindex on; autoindex_format json; }}
		location /private/ {{ alias {site}/nginx/; autoindex on; auth_basic "x"; auth_basic_user_file {top}/words; }}
		location /limited/ {{ alias {site}/nginx/; autoindex on; limit_req zone=few burst=5 nodelay; limit_conn narrow 2; }}
		location /whole/ {{ alias {site}/nginx/; autoindex on; max_ranges 0; }}
	}}
}}
"""


def nginx_serves_the_same():
    top = SCRATCH / "nginx"
    top.mkdir()
    goldens(SITE / "nginx")
    large = s3_large("nginx")
    certificates(top)
    (top / "words").write_text("reader:{PLAIN}a-password\n")
    for _ in range(10):  # another program may take the port: nginx writes its file once it has it
        at = port()
        (top / "config").write_text(CONFIG.format(top=top, site=SITE, port=at, user="user root;" if os.geteuid() == 0 else ""))
        with started([NGINX, "-c", top / "config", "-p", top], ready=(top / "pid").exists) as is_up:
            if is_up:
                url = f"https://127.0.0.1:{at}"
                ask_nginx(url, large)
                return
    check(False, "nginx starts")


def ask_nginx(url, large):
    source, top = SOURCES[1], SCRATCH / "nginx"
    fails(BAD, "certificate", "ls", f"{url}/nginx/{source}/")
    os.environ["SSL_CERT_FILE"] = str(top / "ca.pem")
    ORIGINS.clear()
    ORIGINS["nginx"] = lambda path: f"{url}/nginx/{path}/"
    compare(*SOURCES)
    compare_large(f"{url}/nginx/large/", large)
    # Its listings as JSON; a login; limits, which answer 503; no ranges
    ORIGINS.clear()
    ORIGINS["nginx, JSON"] = lambda path: f"{url}/json/{path}/"
    ORIGINS["nginx, limits"] = lambda path: f"{url}/limited/{path}/"
    fails(ENV, "~/.netrc", "ls", f"{url}/private/{source}/")
    (SCRATCH / ".netrc").write_text("machine 127.0.0.1 login reader password a-password\n")
    ORIGINS["nginx, a login"] = lambda path: f"{url}/private/{path}/"
    ORIGINS["nginx, no ranges"] = lambda path: f"{url}/whole/{path}/"
    os.environ["DCPFS_TIMEOUT"] = "60"
    same(source, "ls", "ls", "--json", "latest")
    same(source, "verify", "verify", "latest", "--record", "-")
    kept = b"".join(p.read_bytes() for p in (SCRATCH / "cache").rglob("*") if p.is_file())
    check(b"a-password" not in kept, "no password in the cache")
    shutil.rmtree(SCRATCH / "cache", ignore_errors=True)
    got = run("cat", f"{url}/whole/large/", "latest", "w3", "--no-cache")
    check(got.returncode != OK and b"no byte ranges" in got.stderr, f"a server without ranges: {got.returncode} {got.stderr}")


skip_without_libcurl()
if not NGINX or not all((PYTHON.parent / n).exists() for n in ("moto_server", "rclone")):
    print("moto, rclone (tests/requirements.txt, DCPFS_TEST_PYTHON) and nginx are not all here", file=sys.stderr)
    sys.exit(77)
SITE.mkdir()
for server in (moto_serves_the_same, rclone_serves_the_same, nginx_serves_the_same):
    if not sys.argv[2:] or server.__name__ in sys.argv[2:]:
        began = time.monotonic()
        server()
        print(f"{server.__name__}: {time.monotonic() - began:.1f} s", flush=True)
for what, n in sorted(compared.COUNTS.items()):
    print(f"{what}: {n}")
finish()
