# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save without torch. Not for a process that imports torch: modules of its name are made up here."""
import collections
import io
import math
import pickle
import sys
import types
import zipfile


class Storage(list):
    """What a fake tensor keeps its bytes in; named in the pickle, never part of it."""


class Tensor:
    """Pickled as torch.save pickles a float32 tensor."""

    def __init__(self, raw, shape):
        self.raw, self.shape = raw, tuple(shape)

    def __reduce__(self):
        strides = tuple(int(math.prod(self.shape[k + 1:])) for k in range(len(self.shape)))
        return FAKE["_rebuild_tensor_v2"], (Storage([self]), 0, self.shape, strides, False, collections.OrderedDict())


def fake(module, name):
    """A global that a pickle can name, as torch has it."""
    def made():
        raise AssertionError
    made.__module__, made.__qualname__ = module, name
    setattr(sys.modules.setdefault(module, types.ModuleType(module)), name, made)
    return made


FAKE = {n: fake(m, n) for m, n in (("torch._utils", "_rebuild_tensor_v2"), ("torch", "FloatStorage"))}


def torch_save(path, value):
    """A zip archive as torch.save writes it, without torch."""
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if not isinstance(obj, Storage):
                return None
            stored.append(obj[0].raw)
            return ("storage", FAKE["FloatStorage"], str(len(stored) - 1), "cpu", len(obj[0].raw) // 4)
    stored, out = [], io.BytesIO()
    Pickler(out, 2).dump(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", out.getvalue())
        z.writestr("archive/byteorder", "little")
        for k, raw in enumerate(stored):
            z.writestr(f"archive/data/{k}", raw)
        z.writestr("archive/version", "3\n")
