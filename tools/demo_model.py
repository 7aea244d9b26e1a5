#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a small llama as four FSDP ranks leave it, twice: a checkpoint of a real shape, made without torch.

usage: demo_model.py DIR        makes DIR/step-1000 and DIR/step-2000, 31 MB each

Each rank's file is as torch.distributed.checkpoint's HuggingFaceStorageWriter writes it: safetensors that
say where in each tensor their rows belong. Weights are normal numbers in bf16; those of step 2000 differ a little.
"""
import array
import json
import pathlib
import random
import sys
import zlib

RANKS, LAYERS, HIDDEN, INNER, HEADS_KV, VOCAB = 4, 6, 384, 1024, 128, 8192


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        for name, rows in ("q", HIDDEN), ("k", HEADS_KV), ("v", HEADS_KV), ("o", HIDDEN):
            yield f"{at}self_attn.{name}_proj.weight", (rows, HIDDEN)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (INNER, HIDDEN)
        yield at + "mlp.up_proj.weight", (INNER, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def bf16(numbers):
    """The upper halves of float32, little-endian."""
    raw = array.array("f", numbers)
    if sys.byteorder == "big":
        raw.byteswap()
    raw = raw.tobytes()
    out = bytearray(len(raw) // 2)
    out[0::2], out[1::2] = raw[2::4], raw[3::4]
    return bytes(out)


def values(block, key, nbytes):
    """The block repeated, from a place that depends on the key."""
    start = zlib.crc32(key.encode()) % len(block) & ~1
    turned = block[start:] + block[:start]
    return (turned * (nbytes // len(turned) + 1))[:nbytes]


def rows_of(rank, n):
    """FSDP deals rows out in equal parts; the last rank may have fewer."""
    step = -(-n // RANKS)
    return min(rank * step, n), min((rank + 1) * step, n)


def write_rank(path, rank, block):
    header, info, body, at = {}, {}, [], 0
    for key, shape in shapes():
        lo, hi = rows_of(rank, shape[0])
        row = 2 * (shape[1] if len(shape) > 1 else 1)
        body.append(values(block, key, shape[0] * row)[lo * row:hi * row])
        header[key] = {"dtype": "BF16", "shape": [hi - lo, *shape[1:]], "data_offsets": [at, at + len(body[-1])]}
        info[key] = {"saved_offsets": [lo] + [0] * (len(shape) - 1)}
        at += len(body[-1])
    header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(body))


def main():
    rnd = random.Random(7)
    weights = [rnd.gauss(0, 0.02) for _ in range(50021)]
    for step in 1000, 2000:
        at = pathlib.Path(sys.argv[1]) / f"step-{step}"
        at.mkdir(parents=True, exist_ok=True)
        for rank in range(RANKS):
            write_rank(at / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors", rank, bf16(weights))
        weights = [w + rnd.gauss(0, 0.001) for w in weights]


if len(sys.argv) != 2:
    sys.exit(__doc__)
main()
