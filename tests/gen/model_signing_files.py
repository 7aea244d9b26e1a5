#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/model-signing: manifests of hf-llama's gpt2-tied by the package model-signing, and what they sign.

usage: model_signing_files.py GOLDEN (in a Python with model-signing, pyopenssl and blake3)
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from model_signing import hashing, signing

KINDS = {"sha256": ("sha256", None), "blake2": ("blake2", None), "blake3": ("blake3", None),
         "sha256-shards": ("sha256", 9000), "blake2-shards": ("blake2", 20000)}


def main():
    golden = pathlib.Path(sys.argv[1])
    out = golden / "model-signing"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as top:
        model, key = pathlib.Path(top) / "gpt2-tied", pathlib.Path(top) / "key.pem"
        shutil.copytree(golden / "hf-llama" / "ckpt" / "gpt2-tied", model)
        key.write_bytes(subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout"], check=True, capture_output=True).stdout)
        for name, (algorithm, size) in KINDS.items():
            how = hashing.Config()
            if size:
                how.use_shard_serialization(hashing_algorithm=algorithm, shard_size=size)
            else:
                how.use_file_serialization(hashing_algorithm=algorithm)
            sig = model / "model.sig"
            how.set_ignored_paths(paths=[sig], ignore_git_paths=True)
            signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(how).sign(model, sig)
            shutil.move(sig, out / f"{name}.sig")


main()
