#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A build without libcurl: whatever would speak to a server says that, at once, and files are read as ever."""
from cli import ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, equal, fails, finish, run

SAYS = "this build has no libcurl; build it with -Dcurl=enabled"
for url in "s3://bucket/run", "gs://bucket/run", "https://example.org/run/", "hf://org/model":
    for verb in ("ls",), ("verify",), ("export", "--as", "npz"), ("load",), ("cat",):
        after = {"export": ("latest", SCRATCH / "out"), "cat": ("latest", "key")}.get(verb[0], ())
        got = fails(ENV, SAYS, *verb, url, *after)
        equal(got.stderr.count(b"\n"), 1, f"{verb} {url}: one line")
(SCRATCH / "mnt").mkdir()
fails(ENV, SAYS, "mount", "s3://bucket/run", SCRATCH / "mnt")
fails(ENV, SAYS, "export", "--as", "npz", GOLDEN / "dcp-fsdp2/ckpt", "latest", "s3://bucket/new")
fails(USAGE, "BUCKET/PREFIX", "ls", "s3://b")  # what is no URL is so here, too
got = run("doctor", "s3://bucket/run")
check(got.returncode == NO and SAYS.encode() in got.stdout, f"doctor: {got.returncode} {got.stdout[-600:]}")
equal(run("verify", GOLDEN / "dcp-fsdp2/ckpt").returncode, OK, "files")
finish()
