# SPDX-License-Identifier: Apache-2.0
"""huggingface_hub uploads hf/ as it is: what a hub of our own gets is the model, file by file, with the right hashes.

The large files go by the LFS protocol, whose client reads them twice: for the hash, and to send them. (The other one, xet, is compiled and
needs the hub's own storage.) Seen well with huggingface_hub 2.4.0. Needs that package, in this python or in that of DCPFS_TEST_TORCH;
tests/run.sh --frameworks makes one.
"""
import base64
import http.server
import json
import os
import pathlib
import sys
import threading

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import needs

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
os.environ.pop("HF_HUB_OFFLINE", None)
needs.modules("DCPFS_TEST_TORCH", "huggingface_hub")
import arrays
import huggingface_hub
import lib
from lib import case, check, equal, mount, read, sha


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as an upload asks for; it keeps what it gets in .server.stored and .server.commit."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        out = b""
        while size := int(self.rfile.readline(), 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def answer(self, **doc):
        text = json.dumps(doc).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer(id="me/small", sha="0" * 40, siblings=[])

    def do_PUT(self):
        self.server.stored[self.path.rpartition("/")[2]] = self.body()
        self.answer()

    def do_POST(self):
        body, place = self.body(), f"http://127.0.0.1:{self.server.server_port}"
        if "/preupload/" in self.path:
            self.answer(files=[{"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular", "shouldIgnore": False}
                               for f in json.loads(body)["files"]])
        elif self.path.endswith("/objects/batch"):
            self.answer(transfer="basic", objects=[o | {"actions": {"upload": {"href": f"{place}/{o['oid']}"}}} for o in json.loads(body)["objects"]])
        elif "/commit/" in self.path:
            self.server.commit += map(json.loads, body.splitlines())
            self.answer(commitUrl=f"{place}/me/small/commit/{'1' * 40}", commitOid="1" * 40)
        else:
            self.answer()


def upload_folder():
    """What arrives is what stands in the directory; nothing is written into it, and shard/ is not taken along."""
    source, hub = lib.fresh("source"), http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    hub.stored, hub.commit = {}, []
    arrays.write_sharded(source / "step-1", {f"w{i}": ("U8", [70_000 + i], 0, lib.rng(i).randbytes(70_000 + i)) for i in range(4)})
    (source / "step-1" / "config.json").write_text('{"model_type": "small"}')
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    with mount(source, "--hf-shard-size", "150K") as m:
        at, got = m.at / "step-1" / "hf", {}
        api = huggingface_hub.HfApi(endpoint=f"http://127.0.0.1:{hub.server_port}", token="hf_none")
        case("upload_folder")
        api.upload_folder(repo_id="me/small", folder_path=at)
        for line in hub.commit:
            entry = line["value"]
            if line["key"] == "file":
                got[entry["path"]] = base64.b64decode(entry["content"])
            elif line["key"] == "lfsFile":
                got[entry["path"]] = data = hub.stored.get(entry["oid"], b"")
                equal((sha(data), len(data)), (entry["oid"], entry["size"]), f"hash and size of {entry['path']}")
        want = {name: read(at / name) for name in os.listdir(at)}
        equal({k: sha(v) for k, v in got.items()}, {k: sha(v) for k, v in want.items()}, "files")
        check({"config.json", "README.md", "model.safetensors.index.json"} < set(got) and len(hub.stored) >= 2, f"what a model has: {sorted(got)}")
    hub.shutdown()


lib.main(upload_folder)
