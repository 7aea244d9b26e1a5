#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server of files as web servers and object stores have them, and one that fails as they do.

Server(top).url is http://127.0.0.1:PORT. Below /web/ it lists directories as HTML, below /bucket/ it answers as S3
does (ListObjectsV2, ranges, ETag, If-Match), and below /api/ and /ORG/MODEL/resolve/ as the Hub: MODEL is a directory
below the top, or all of it. /sts/, /latest/, /container/ and /computeMetadata/ give credentials, as clouds do. Every request is in
.log as (method, path, range). What is to go wrong is set in .fault: a function of the request that returns the name of
a fault, or None.
"""
import email.utils
import hashlib
import html
import http.server
import json
import os
import pathlib
import re
import socket
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

PAGE = 1000  # keys of a page of a list, unless a test makes it smaller


TAGS = {}  # of large files, as they were
PARTS, MARKS = {}, {}  # tags of files that came in parts, and whose files are


def etag(path):
    if PARTS.get(path):
        return PARTS[path]
    st = path.stat()
    if st.st_size < 1 << 20:
        return '"%s"' % hashlib.md5(path.read_bytes()).hexdigest()
    key = (path, st.st_ino, st.st_size, st.st_mtime_ns)
    if key not in TAGS:
        TAGS[key] = '"%s"' % hashlib.md5(path.read_bytes()).hexdigest()
    return TAGS[key]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.server.owner.handle(self)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET


class Server:
    def __init__(self, top, page=PAGE):
        self.top, self.page = pathlib.Path(top), page
        self.log, self.fault, self.changed = [], lambda r: None, {}
        self.lock = threading.Lock()
        self.uploads, self.written = {}, []  # uploads that were begun: (key, parts); keys, as they became objects
        self.keys = None  # with these two set, requests to the bucket must be signed
        self.hub_lasts = 3600  # what the Hub leads to
        self.issued, self.expired, self.lasts = {}, set(), 3600  # keys that were given out: (secret, token), the ages of these
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.owner = self
        self.http.handle_error = lambda *_: None  # connections that a client gave up
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def taken(self):
        """The requests since the last call."""
        with self.lock:
            log, self.log = self.log, []
        return log

    # ---- one request ----

    def handle(self, r):
        if r.path.startswith("http://"):  # as to a proxy, which every server must take
            r.path = "/" + r.path.split("/", 3)[3]
        path, _, query = r.path.partition("?")
        r.name = urllib.parse.unquote(path)
        r.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        r.body = r.rfile.read(int(r.headers.get("Content-Length") or 0))
        with self.lock:
            self.log.append((r.command, r.path, r.headers.get("Range")))
            r.number = len(self.log)
        fault = self.fault(r)
        if fault and self.fail(r, fault):
            return
        if ".." in r.name:
            r.answer(400)
        elif r.name.startswith("/bucket/"):
            self.object_store(r, r.name[len("/bucket/"):])
        elif r.name.startswith("/web/"):
            self.web(r, r.name[len("/web/"):])
        elif r.name.startswith("/api/models/") or "/resolve/" in r.name:
            self.hub(r)
        elif r.name == "/sts/":
            self.role(r)
        elif r.name.startswith(("/latest/", "/container/", "/computeMetadata/")):
            self.machine(r)
        else:
            r.answer(404)

    def fail(self, r, fault):
        """True: the answer was that. False: the request is answered, and r.fault changes how."""
        r.fault = fault
        if isinstance(fault, int):
            r.answer(fault, b"<Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>")
        elif fault == "retry-after":
            r.answer(503, Retry_After="1")
        elif fault == "reset":
            r.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            r.connection.close()
            r.close_connection = True
        elif fault == "hang":
            time.sleep(15)
            r.close_connection = True
        elif fault == "stall":
            r.send_response(200)
            r.send_header("Content-Length", "100")
            r.end_headers()
            time.sleep(4)
            r.close_connection = True
        elif fault.startswith("to:"):
            r.answer(302, Location=fault[3:])
        else:
            return False
        return True

    # ---- whose requests they are ----

    def ask_signature(self, r):
        """What is wrong with the request: a code; None: nothing."""
        given = r.headers.get("Authorization", "")
        if not self.keys:
            return None
        if given.startswith("Bearer "):
            return None if given.removeprefix("Bearer ") in {token for _, token in self.issued.values()} else "AccessDenied"
        key = given.removeprefix("AWS4-HMAC-SHA256 Credential=").partition("/")[0]
        secret, token = {self.keys[0]: (self.keys[1], None), **self.issued}.get(key, (None, None))
        if not secret or not self.signed(r, given, secret):
            return "SignatureDoesNotMatch"
        if token != r.headers.get("x-amz-security-token") or (token and "x-amz-security-token" not in given):
            return "InvalidToken"
        return "ExpiredToken" if key in self.expired else None

    @staticmethod
    def signed(r, given, secret):
        """The signature once more, by the published steps."""
        import hmac
        fields = dict(f.split("=", 1) for f in given.split(" ", 1)[1].split(", "))
        key, day, region, service, end = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        path, _, query = r.path.partition("?")
        heads = "".join(f"{n}:{r.headers[n]}\n" for n in names)
        query = "&".join(sorted(query.split("&"))) if query else ""
        request = "\n".join((r.command, path, query, heads, ";".join(names), r.headers["x-amz-content-sha256"]))
        text = "\n".join(("AWS4-HMAC-SHA256", r.headers["x-amz-date"], f"{day}/{region}/{service}/{end}",
                          hashlib.sha256(request.encode()).hexdigest()))
        mac = ("AWS4" + secret).encode()
        for part in (day, region, service, end, text):
            mac = hmac.new(mac, part.encode(), hashlib.sha256).digest()
        return "host" in names and hmac.compare_digest(mac.hex(), fields["Signature"])

    def issue(self):
        """Keys of a role, as a server of credentials gives them."""
        n = len(self.issued)
        key, secret, token = f"ASIAISSUED{n}", f"issued-secret-{n}", f"issued/token+{n}=="
        self.issued[key] = secret, token
        return key, secret, token, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.lasts))

    def role(self, r):
        """Amazon's token service: for a web identity, or for keys that it knows."""
        asked = dict(urllib.parse.parse_qsl(r.body.decode()))
        self.role_asked = asked
        web_identity = asked["Action"] == "AssumeRoleWithWebIdentity"
        if asked.get("WebIdentityToken") != "web-identity-token" if web_identity else self.ask_signature(r):
            return r.answer(403, b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>not for you</Message></Error></ErrorResponse>")
        key, secret, token, until = self.issue()
        return r.answer(200, f"""<{asked["Action"]}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{asked["Action"]}Result>
<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>
<Expiration>{until}</Expiration></Credentials></{asked["Action"]}Result></{asked["Action"]}Response>""".encode())

    def given(self, r):
        key, secret, token, until = self.issue()
        return r.answer(200, json.dumps({"AccessKeyId": key, "SecretAccessKey": secret, "Token": token, "Expiration": until, "Code": "Success"}).encode())

    def machine(self, r):
        """What clouds have at a link-local address, and for containers."""
        if r.name == "/latest/api/token":
            seconds = r.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            return r.answer(200, b"machine-session") if r.command == "PUT" and seconds else r.answer(405)
        if r.name.startswith("/latest/meta-data/iam/security-credentials/"):
            if r.headers.get("X-aws-ec2-metadata-token") != "machine-session":
                return r.answer(401)
            return self.given(r) if r.name.endswith("/a-role") else r.answer(200, b"a-role")
        if r.name == "/container/credentials":
            return self.given(r) if r.headers.get("Authorization") == "container-token" else r.answer(403)
        if r.headers.get("Metadata-Flavor") != "Google":
            return r.answer(403)
        return r.answer(200, json.dumps({"access_token": self.issue()[2], "expires_in": self.lasts, "token_type": "Bearer"}).encode())

    # ---- files ----

    def send_file(self, r, path, tag=True, ranges=True):
        fault = getattr(r, "fault", None)
        size = path.stat().st_size
        heads = {"Last_Modified": email.utils.formatdate(path.stat().st_mtime, usegmt=True)}
        if tag:
            heads["ETag"] = etag(path)
        if MARKS.get(path):
            heads["x_amz_meta_written_by"] = MARKS[path]
        match = r.headers.get("If-Match")
        if match and tag and match != heads["ETag"]:
            return r.answer(412)
        asked = r.headers.get("Range")
        if not asked or not ranges:
            return r.answer(200, path.read_bytes(), **heads)
        lo, hi = asked.removeprefix("bytes=").split("-")
        lo, hi = int(lo), min(int(hi or size), size - 1)
        if lo >= size:
            return r.answer(416)
        with open(path, "rb") as f:
            f.seek(lo)
            part = f.read(hi + 1 - lo)
        heads["Content_Range"] = f"bytes {lo}-{hi}/{size}"
        if fault == "wrong range":
            heads["Content_Range"] = f"bytes {lo + 1}-{hi + 1}/{size}"
        elif fault == "other size":
            heads["Content_Range"] = f"bytes {lo}-{hi}/{size + 1}"
        elif fault == "no range":
            del heads["Content_Range"]
        elif fault == "long":
            part += b"x" * 1000
        elif fault == "doubled":  # a chunk is sent twice, and counted
            part = part[:len(part) // 2] + part
        elif fault in ("duplicated", "stalled", "shifted", "cut"):  # the same, in chunks without a length; a body that stops; a byte more in front
            part = b"x" + part if fault in ("shifted", "cut") else part
            r.send_response(206)
            for name, value in {**heads, "Transfer_Encoding": "chunked"}.items():
                r.send_header(name.replace("_", "-"), value)
            r.end_headers()
            half = len(part) // 2
            for piece in {"duplicated": (part[:half], part[:half], part[half:]), "stalled": (part[:half],), "shifted": (part[:half], part[half:]),
                          "cut": (part[:half],)}[fault]:
                r.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b"")
            if fault == "stalled":
                r.wfile.flush()
                time.sleep(3)
                r.close_connection = True
                return None
            r.wfile.write(b"0\r\n\r\n")
            return None
        elif fault == "compressed":
            heads["Content_Encoding"] = "gzip"
        elif fault == "other tag":
            heads["ETag"] = '"other"'
        elif fault == "short":
            r.send_response(206)
            for name, value in heads.items():
                r.send_header(name.replace("_", "-"), value)
            r.send_header("Content-Length", str(len(part)))
            r.end_headers()
            r.wfile.write(part[:len(part) // 2])
            r.wfile.flush()
            r.connection.shutdown(socket.SHUT_RDWR)
            r.close_connection = True
            return None
        return r.answer(206, part, **heads)

    def web(self, r, name):
        path = self.top / name
        if path.is_dir() and not r.name.endswith("/"):
            return r.answer(301, Location=r.path + "/")
        if path.is_dir():
            names = sorted(p.name + "/" * p.is_dir() for p in path.iterdir())
            links = "".join(f'<a href="{urllib.parse.quote(n)}">{html.escape(n)}</a>\n' for n in ["../", *names])
            return r.answer(200, f"<html><body>{links}</body></html>".encode(), Content_Type="text/html")
        if not path.is_file():
            return r.answer(404)
        return self.send_file(r, path, tag=not getattr(self, "no_tags", False), ranges=not getattr(self, "no_ranges", False))

    # ---- an object store ----

    def object_store(self, r, name):
        if wrong := self.ask_signature(r):
            return r.answer(400 if wrong == "ExpiredToken" else 403, f"<Error><Code>{wrong}</Code><Message>no</Message></Error>".encode())
        if name == "" and r.query.get("list-type") == "2":
            return self.list_objects(r)
        if "uploads" in r.query and r.command == "GET":
            return self.list_uploads(r)
        if r.command in ("PUT", "POST", "DELETE"):
            return self.write(r, name)
        path = self.top / name
        if not name or not path.is_file() or name.endswith("/"):
            return r.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self.send_file(r, path)

    # ---- writing to it ----

    def write(self, r, name):
        sha = r.headers.get("x-amz-content-sha256", hashlib.sha256(r.body).hexdigest())
        if sha != hashlib.sha256(r.body).hexdigest():
            return r.answer(400, b"<Error><Code>XAmzContentSHA256Mismatch</Code></Error>")
        if r.headers.get("x-amz-acl"):
            return r.answer(400)
        path, upload = self.top / name, r.query.get("uploadId")
        with self.lock:
            mark = r.headers.get("x-amz-meta-written-by")
            if "uploads" in r.query:
                upload = f"upload-{len(self.uploads)}+/="
                self.uploads[upload] = (name, {}, mark)
                return r.answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode())
            if upload is not None and self.uploads.get(upload, ("",))[0] != name:
                return r.answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
            if r.command == "DELETE":
                if upload:
                    del self.uploads[upload]
                elif path.is_file():
                    path.unlink()
                return r.answer(204)
            tag = '"%s"' % hashlib.md5(r.body).hexdigest()
            if r.command == "PUT" and upload:
                self.uploads[upload][1][int(r.query["partNumber"])] = r.body
                return r.answer(200, ETag=tag)
            if r.headers.get("If-None-Match") == "*" and path.is_file():
                return r.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            body = r.body
            MARKS[path] = self.uploads[upload][2] if upload else mark
            if upload:
                given = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>([^<]*)</ETag>", body.decode())
                parts = self.uploads[upload][1]
                tags = [(str(k), '"%s"' % hashlib.md5(p).hexdigest()) for k, p in sorted(parts.items())]
                if given != tags or any(len(parts[k]) < 5 << 20 for k in sorted(parts)[:-1]):
                    return r.answer(400, b"<Error><Code>InvalidPart</Code></Error>")
                body = b"".join(p for _, p in sorted(parts.items()))
                del self.uploads[upload]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            PARTS[path] = ('"%s-%d"' % (hashlib.md5(b"".join(hashlib.md5(p).digest() for _, p in sorted(parts.items()))).hexdigest(), len(parts))
                           if upload else None)
            self.written.append(name)
            if getattr(r, "fault", None) == "lost answer":
                r.connection.close()
                r.close_connection = True
                return None
            return r.answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>" if upload else b"", ETag=tag)

    def list_uploads(self, r):
        text = "".join(f"<Upload><Key>{escape(n)}</Key><UploadId>{u}</UploadId><Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>"
                       for u, (n, *_) in self.uploads.items() if n.startswith(r.query.get("prefix", "")))
        return r.answer(200, f"<ListMultipartUploadsResult>{text}</ListMultipartUploadsResult>".encode())

    def all_keys(self, prefix=""):
        """Of the files whose names begin so."""
        for folder, _, names in os.walk(self.top / prefix.rpartition("/")[0]):
            for n in names:
                path = pathlib.Path(folder) / n
                key = path.relative_to(self.top).as_posix()
                if key.startswith(prefix) and path.is_file():
                    yield key

    def list_objects(self, r):
        fault = getattr(r, "fault", None)
        prefix, delimiter = r.query.get("prefix", ""), r.query.get("delimiter")
        after, most = r.query.get("continuation-token", ""), min(int(r.query.get("max-keys", PAGE)), self.page)
        found = {}
        for key in self.all_keys(prefix):
            rest = key[len(prefix):]
            cut = rest.find(delimiter) if delimiter else -1
            found[prefix + rest[:cut + 1] if cut >= 0 else key] = cut < 0
        found = sorted((k, v) for k, v in found.items() if k > after)
        more = len(found) > most
        text = ["<?xml version='1.0'?>"]
        if fault == "doctype":
            text.append('<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>')
        text.append('<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">')
        for key, whole in found[:most]:
            if not whole:
                text.append(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>")
                continue
            path = self.top / key
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(path.stat().st_mtime))
            text.append(f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>"
                        f"<ETag>{escape(etag(path))}</ETag><Size>{path.stat().st_size}</Size></Contents>")
        if fault == "climbing names":
            for key in ("../../etc/passwd", "/etc/passwd", f"{prefix}../x", f"{prefix}a//b", f"{prefix}./c", f"{prefix}\u0085"):
                text.append(f"<Contents><Key>{key}</Key><ETag>x</ETag><Size>1</Size></Contents>")
        if fault == "endless":
            more, found = True, [("same", True)] * (most + 1)
        text.append(f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>")
        if more:
            text.append(f"<NextContinuationToken>{escape(found[most - 1][0])}</NextContinuationToken>")
        text.append("</ListBucketResult>" if fault != "cut" else "<Contents><Key>")
        return r.answer(200, "".join(text).encode(), Content_Type="application/xml")

    # ---- the Hub ----

    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def signature(self):
        """Of an URL that can be used for so many seconds."""
        if self.hub_lasts is None:
            return "signature=secret"
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return f"X-Amz-Date={now}&X-Amz-Expires={self.hub_lasts}&signature=secret"

    def hub(self, r):
        self.bearer = r.headers.get("Authorization")
        if "/revision/" in r.name:
            return r.answer(200, json.dumps({"sha": self.COMMIT}).encode())
        model = r.name.removeprefix("/api/models").split("/")[2]
        within = model + "/" if (self.top / model).is_dir() else ""
        if "/tree/" in r.name:
            rows = [{"type": "file", "path": k[len(within):], "oid": etag(self.top / k).strip('"'), "size": (self.top / k).stat().st_size}
                    for k in sorted(self.all_keys(within))]
            return r.answer(200, json.dumps(rows).encode())
        name = r.name.partition(f"/resolve/{self.COMMIT}/")[2]
        path = self.top / within / name
        if not name or not path.is_file():
            return r.answer(404)
        return r.answer(302, Location=f"{self.url}/web/{urllib.parse.quote(within + name)}?{self.signature()}")
