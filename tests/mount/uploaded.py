# SPDX-License-Identifier: Apache-2.0
"""huggingface_hub uploads hf/ as it is: what a hub of our own gets is the model, file by file, with the right hashes.

Large files go by LFS, in python, and by xet, whose compiled client hashes them while it cuts them into chunks; these it keeps in a
directory, as there is no such server. Seen well with huggingface_hub 2.4.0, hf-xet 1.8.0. Needs these packages, in this python or in that of DCPFS_TEST_TORCH;
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

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
os.environ.pop("HF_HUB_OFFLINE", None)
needs.modules("DCPFS_TEST_TORCH", "huggingface_hub", "hf_xet")
import arrays
import huggingface_hub.constants
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
        if "xet-write-token" in self.path:
            self.server.tokens += 1
            self.answer(casUrl=f"local://{self.server.chunks}", accessToken="none", exp=1 << 32)
            return
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


def upload_folder_sends_the_directory():
    """What arrives is what stands in the directory; nothing is written into it, and shard/ is not taken along."""
    source, hub = lib.fresh("source"), http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    arrays.write_sharded(source / "step-1", {f"w{i}": ("U8", [70_000 + i], 0, lib.rng(i).randbytes(70_000 + i)) for i in range(4)})
    (source / "step-1" / "config.json").write_text('{"model_type": "small"}')
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    with mount(source, "--hf-shard-size", "150K") as m:
        at = m.at / "step-1" / "hf"
        want = {name: (sha(read(at / name)), os.stat(at / name).st_size) for name in os.listdir(at)}
        for lfs in (True, False):
            case("LFS" if lfs else "xet")
            hub.stored, hub.commit, hub.chunks, hub.tokens, got = {}, [], lib.fresh("chunks"), 0, {}
            huggingface_hub.constants.HF_HUB_DISABLE_XET = lfs
            huggingface_hub.HfApi(endpoint=f"http://127.0.0.1:{hub.server_port}", token="hf_none").upload_folder(repo_id="me/small", folder_path=at)
            for line in hub.commit:
                entry = line["value"]
                if line["key"] == "file":
                    data = base64.b64decode(entry["content"])
                    got[entry["path"]] = sha(data), len(data)
                elif line["key"] == "lfsFile":
                    got[entry["path"]] = entry["oid"], entry["size"]
            equal(got, want, "hashes and sizes of the files")
            equal({(sha(data), len(data)) for data in hub.stored.values()}, {v for k, v in want.items() if lfs and k.endswith(".safetensors")}, "what came by LFS")
            equal(bool(hub.tokens), not lfs, "went by xet")
            kept = sum(p.stat().st_size for p in hub.chunks.rglob("*") if p.is_file() and p.suffix != ".redb")
            check(lfs or kept > 4 * 70_000, f"{kept} bytes of chunks")
        check({"config.json", "README.md", "model.safetensors.index.json"} < set(want) and len(want) > 4, f"what a model has: {sorted(want)}")
    hub.shutdown()


lib.main(upload_folder_sends_the_directory)
