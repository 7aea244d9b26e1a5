#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.composer's download for all ranks: what fails on one rank reaches all. Neither Composer nor torch is needed: the ranks are
threads, and the functions of Composer that are called here are replaced.

usage: fetched.py [TestCase.test...]
"""
import contextlib
import importlib.abc
import importlib.machinery
import pickle
import sys
import threading
import unittest
import unittest.mock

import base

OUTSIDE = ("torch", "composer", "tqdm")  # replaced, with all that is in them
RANKS = 2


class Named(Exception):
    """Can be pickled, and not made again from the pickle."""

    def __init__(self, code, text):
        super().__init__(f"{code} {text}")


class Open(Exception):
    """Cannot be pickled, as exceptions that keep the answer of a server."""

    def __init__(self, text):
        super().__init__(text)
        self.answer = threading.Lock()


class Outside(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of which every name can be imported."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in OUTSIDE else None

    def create_module(self, spec):
        return unittest.mock.MagicMock()

    def exec_module(self, module):
        pass


class Ranks:
    """In place of composer.utils.dist."""

    def __init__(self):
        self._mine, self._all = threading.local(), [None] * RANKS
        self._met = threading.Barrier(RANKS, timeout=5)

    def start(self, rank):
        self._mine.rank = rank

    def get_local_rank(self):
        return self._mine.rank

    get_global_rank = get_local_rank

    def barrier(self):
        self._met.wait()

    def all_gather_object(self, value):
        self._all[self._mine.rank] = pickle.dumps(value)
        self._met.wait()
        every = [pickle.loads(data) for data in self._all]
        self._met.wait()
        return every

    def local_rank_zero_download_and_wait(self, signal):
        return contextlib.nullcontext()


sys.meta_path.insert(0, Outside())
import dcpfs.composer as ours  # noqa: E402


class Fetched(unittest.TestCase):
    def fails(self, failure):
        """What each rank raises if rank 0's download does."""
        raised, dist = [None] * RANKS, Ranks()

        def one(rank):
            dist.start(rank)
            try:
                with ours._fetched("s3://bucket/ep1", None, False):
                    pass
            except Exception as e:
                raised[rank] = e

        with unittest.mock.patch.multiple(ours, dist=dist, get_file=unittest.mock.Mock(side_effect=failure)):
            threads = [threading.Thread(target=one, args=(rank,)) for rank in range(RANKS)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        return raised

    def test_failure_reaches_all_ranks(self):
        """Of its own class where a rank can make that, otherwise with its class's name and text."""
        for failure, other in ((FileNotFoundError(2, "no ep1"), FileNotFoundError), (Named(403, "forbidden"), RuntimeError),
                               (Open("no package boto3"), RuntimeError)):
            with self.subTest(type(failure).__name__):
                here, there = self.fails(failure)
                self.assertIsInstance(here, type(failure))
                self.assertIs(here.__cause__, failure)
                self.assertEqual(getattr(here, "answer", None), getattr(failure, "answer", None))
                self.assertIsInstance(there, other)
                for error in here, there:
                    self.assertEqual((error.rank, str(error)[:8]), (0, "rank 0: "))
                    self.assertIn(str(failure), str(error))
                if other is RuntimeError:
                    self.assertIn(type(failure).__name__, str(there))


if __name__ == "__main__":
    base.main()
