# SPDX-License-Identifier: Apache-2.0
"""What .metadata says of the byte items of a checkpoint of torch.distributed.checkpoint, read by Python's pickle, without torch."""
import os
import pickle


class Stand:
    """For an object of any class: what it was made with, and its state."""

    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {})


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return dict if name == "OrderedDict" else type(name, (Stand,), {})


def items(version):
    """{key: (its bytes as they are stored, whether they are encoded)}. Of keys that ranks stored apart: the first's."""
    found = {}
    for name in sorted(n for n in os.listdir(version) if n.endswith(".metadata")):
        with open(os.path.join(version, name), "rb") as f:
            meta = Reader(f).load()
        for index, at in meta.storage_data.items():
            if type(meta.state_dict_metadata[index.fqn]).__name__ != "BytesStorageMetadata" or index.fqn in found:
                continue
            with open(os.path.join(version, at.relative_path), "rb") as f:
                f.seek(at.offset)
                found[index.fqn] = f.read(at.length), bool(getattr(at, "transform_descriptors", None))
    return found


def told(path):
    """What ranks.c wrote of objects: {key: (bytes or None, JSON or None)}."""
    found = {}
    with open(path, "rb") as f:
        while line := f.readline():
            n, njson, key = line.rstrip(b"\n").split(b" ", 2)
            found[key.decode()] = tuple(None if int(size) < 0 else f.read(int(size)) for size in (n, njson))
    return found


def differ(version, folder, ranks):
    """What is wrong with what so many ranks were told of the objects of a version."""
    want = items(version)
    for rank in range(ranks):
        got = told(os.path.join(folder, str(rank)))
        if set(got) != set(want):
            yield f"rank {rank} is told of {sorted(got)}"
        for key, (raw, json) in got.items():
            if raw != want.get(key, [None])[0] or not json:
                yield f"rank {rank}: {key} is {raw!r}, {json!r}"
