# SPDX-License-Identifier: Apache-2.0
"""A llama-shaped model with awkward sizes, bf16 weights and float32 norms."""
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, dtype=torch.float32))


class Attention(nn.Module):
    def __init__(self, d, kv, dt):
        super().__init__()
        self.q_proj = nn.Linear(d, d, bias=False, dtype=dt)
        self.k_proj = nn.Linear(d, kv, bias=True, dtype=dt)
        self.v_proj = nn.Linear(d, kv, bias=True, dtype=dt)
        self.o_proj = nn.Linear(d, d, bias=False, dtype=dt)


class Mlp(nn.Module):
    def __init__(self, d, f, dt):
        super().__init__()
        self.gate_proj = nn.Linear(d, f, bias=False, dtype=dt)
        self.up_proj = nn.Linear(d, f, bias=False, dtype=dt)
        self.down_proj = nn.Linear(f, d, bias=False, dtype=dt)


class Block(nn.Module):
    def __init__(self, d, kv, f, dt):
        super().__init__()
        self.input_layernorm = Norm(d)
        self.self_attn = Attention(d, kv, dt)
        self.post_attention_layernorm = Norm(d)
        self.mlp = Mlp(d, f, dt)


class TinyLlama(nn.Module):
    def __init__(self, vocab=131, d=22, kv=10, f=37, layers=2, dt=torch.bfloat16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, d, dtype=dt)
        self.layers = nn.ModuleList(Block(d, kv, f, dt) for _ in range(layers))
        self.norm = Norm(d)
        self.patch = nn.Conv3d(3, 5, (2, 3, 1), dtype=dt)   # 5-D weight
        self.scale = nn.Parameter(torch.ones(1, dtype=dt))  # 1 element
        self.gain = nn.Parameter(torch.ones(3, dtype=dt))   # fewer rows than ranks
        self.register_buffer("inv_freq", torch.ones(11, dtype=torch.float32))
        self.register_buffer("seen", torch.tensor(0, dtype=torch.int64))   # 0-dim
        self.lm_head = nn.Linear(d, vocab, bias=False, dtype=dt)
