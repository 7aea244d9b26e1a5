#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.transformers beside from_pretrained(): small models under the names that trainers give them (tests/gen/renamed.py), in
checkpoints of torch, loaded without a mount; every weight and the logits are equal to those of the original. Then the same
weights where accelerate and Lightning want them.

Needs torch, transformers and accelerate; lightning if it is there; tests/run.sh --frameworks runs it. Data comes from a seed.

usage: transformers_proof.py [MODEL...]
"""
import importlib.util
import pathlib
import sys
import tempfile

import needs

needs.modules("DCPFS_TEST_TORCH", "torch", "transformers")
import torch
import transformers
import base
from base import dcpfs, np
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import dcpfs.torch
import dcpfs.transformers  # noqa: E402

sys.path.insert(0, str(base.ROOT / "tests/gen"))
import renamed  # noqa: E402

SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64)
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16),
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4),
}


def same(want, got):
    tokens = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        assert torch.equal(want(tokens).logits, got(tokens).logits)
    theirs = got.state_dict()
    for k, v in want.state_dict().items():
        assert torch.equal(v, theirs[k]) and v.dtype == theirs[k].dtype, k


def sources(kind, model, top):
    """(what, source, mapping)"""
    own = {}
    for part in sorted((top / "own").glob("*.safetensors")):
        own |= load_file(part)
    moments = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    dcp.save({"model": model.state_dict(), "optim": {"exp_avg": moments}}, checkpoint_id=str(top / "dcp"))
    model.save_pretrained(top / "parts", max_shard_size="100KB")
    torch.save({"model": {f"module._orig_mod.{k}": v for k, v in model.state_dict().items()}}, top / "wrapped.pt")
    yield from (("torch.distributed.checkpoint", top / "dcp", "auto"), ("save_pretrained", top / "parts", "hf"), ("torch.save", top / "wrapped.pt", "auto"))
    for preset, form, convert in renamed.FORMS[kind]:
        bits = convert({k: v.view(torch.int16).numpy() for k, v in own.items()}, model.config.to_dict())
        stored = {k: torch.from_numpy(np.ascontiguousarray(a)).view(torch.bfloat16 if a.dtype == "int16" else torch.uint8) for k, a in bits.items()}
        dcp.save(stored, checkpoint_id=str(top / f"{preset}-{form}"))
        yield f"{preset} {form}", top / f"{preset}-{form}", preset


def missing_weights_and_rules_are_errors(top, config):
    state = dcpfs.torch.load_file(top / "dcp", cache="")["model"]
    del state["model.norm.weight"]
    torch.save(state, top / "less.pt")
    try:
        dcpfs.transformers.from_checkpoint(config, top / "less.pt", "hf", how={"cache": ""})
        raise AssertionError("nothing was missing")
    except dcpfs.DcpfsError as e:
        assert "model.norm.weight" in e.text, e
    dcpfs.transformers.from_checkpoint(config, top / "less.pt", "hf", strict=False, how={"cache": ""})
    for mapping, word in (("megatrom", "megatron"), (str(top / "none.rules"), "none.rules")):
        try:
            dcpfs.transformers.from_checkpoint(config, top / "dcp", mapping, how={"cache": ""})
            raise AssertionError("no such rules")
        except OSError as e:
            assert word in str(e), e


def recipes_of_the_readme_work(top, want):
    """What README says about accelerate and Lightning."""
    import accelerate

    model = AutoModelForCausalLM.from_config(want.config, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerate.Accelerator(cpu=True).prepare(model, optimizer)
    dcpfs.torch.load_state_dict({"model": model.state_dict()}, top / "dcp", cache="")
    same(want, model.eval())
    print("  accelerate: equal", flush=True)
    if importlib.util.find_spec("lightning"):
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = AutoModelForCausalLM.from_config(want.config, dtype=torch.bfloat16)

        module = Module()
        dcpfs.torch.load_state_dict({"state_dict": module.state_dict()}, top / "dcp", cache="",
                                    rename=lambda key: key.removeprefix("state_dict."))
        same(want, module.model.eval())
        print("  lightning: equal", flush=True)


def main():
    for kind in sys.argv[1:] or CONFIGS:
        with tempfile.TemporaryDirectory(prefix="dcpfs-transformers-") as scratch:
            top = pathlib.Path(scratch)
            torch.manual_seed(3)
            AutoModelForCausalLM.from_config(CONFIGS[kind]).to(torch.bfloat16).save_pretrained(top / "own")
            want = AutoModelForCausalLM.from_pretrained(top / "own", dtype=torch.bfloat16).eval()
            for what, source, preset in sources(kind, want, top):
                for mapping in {"auto", preset}:
                    got = dcpfs.transformers.from_checkpoint(top / "own", source, mapping, how={"cache": ""})
                    assert not got.training
                    same(want, got)
                print(f"  {kind}, {what}: equal", flush=True)
            if kind == "llama":
                missing_weights_and_rules_are_errors(top, top / "own")
                recipes_of_the_readme_work(top, want)
    print("all equal")


if __name__ == "__main__":
    main()
