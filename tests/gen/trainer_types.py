# SPDX-License-Identifier: Apache-2.0
"""Classes that land inside pickles as user-defined objects (a reader must keep them opaque)."""
import enum
from dataclasses import dataclass, field


class Phase(enum.Enum):
    WARMUP = 1
    STABLE = 2


@dataclass
class RunInfo:
    name: str = "tiny"
    seeds: list = field(default_factory=lambda: [3, 5, 7])
    ratio: float = 0.25
