#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on a server, by URL, give the same arrays as their files; with torch at hand, also load() and the Reader of dcpfs.torch.

usage: remote.py [TestCase.test...]
"""
import os
import sys
import unittest

import base
from base import ROOT, dcpfs, golden, np

sys.path.insert(0, str(ROOT / "tests/origin"))
from server import Server  # noqa: E402

SERVER = Server(ROOT / "tests/golden")
os.environ.update(AWS_ENDPOINT_URL=SERVER.url, AWS_NO_SIGN_REQUEST="1")
SOURCE = golden("dcp-fsdp2")[0]
URLS = ("s3://bucket/dcp-fsdp2/ckpt", f"{SERVER.url}/web/dcp-fsdp2/ckpt/")


class Remote(unittest.TestCase):
    def test_arrays_are_those_of_the_files(self):
        want = dcpfs.load(SOURCE)
        for url in URLS:
            SERVER.taken()
            got = dcpfs.load(url)
            self.assertEqual(list(got), list(want), url)
            for key, array in want.items():
                self.assertEqual(bytes(got[key].buffer), bytes(array.buffer), f"{url}: {key}")
            self.assertTrue(SERVER.taken(), "the server was asked")

    def test_what_is_not_there_is_an_error(self):
        with self.assertRaises(dcpfs.DcpfsError) as said:
            dcpfs.load("s3://bucket/no/such/run")
        self.assertIn("nothing is there", str(said.exception))

    def test_torch_loads_by_url(self):
        try:
            import torch
            from dcpfs.torch import load
        except ImportError:
            self.skipTest("no torch")
        states = []
        for source in (SOURCE + "/step-20", URLS[0] + "/step-20"):
            arrays = dcpfs.load(source)
            key = next(k for k, a in arrays.items() if np.prod(a.shape) > 1 and str(a.dtype) == "F32")
            state = {key: torch.zeros(tuple(arrays[key].shape))}
            load(state, checkpoint_id=source)
            states.append(state[key])
        self.assertEqual(states[1].numpy().tobytes(), states[0].numpy().tobytes())
        self.assertTrue(states[0].any())


if __name__ == "__main__":
    base.main()
