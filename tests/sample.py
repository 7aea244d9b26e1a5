# SPDX-License-Identifier: Apache-2.0
"""A part of many cases that run the same code, for a build in which each costs several times as much: DCPFS_TEST_SAMPLE=N
leaves every Nth, and tests/run.sh sets it for the address sanitizer. All cases run in the default build."""
import os

SAMPLE = max(1, int(os.environ.get("DCPFS_TEST_SAMPLE") or "1"))


def sample(cases, first=0):
    """Every Nth of @cases. Callers in a loop count @first up, so that their samples differ."""
    cases = list(cases)
    chosen = cases[first % min(SAMPLE, len(cases) or 1)::SAMPLE]
    if len(chosen) < len(cases):
        print(f"{len(chosen)} of {len(cases)} cases: DCPFS_TEST_SAMPLE={SAMPLE}")
    return chosen


def least(n):
    """How many of @n, found in all cases, a sample must find."""
    return n // (2 * SAMPLE) if SAMPLE > 1 else n
