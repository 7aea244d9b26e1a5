#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that Composer keeps in its checkpoints, and the files that they had before.

  packages   mosaicml 0.32.1, torch 2.7.0, transformers 4.51.3, sentencepiece 0.2.3
  run        python composer_tokenizers.py
  writes     ../golden/composer-hf: of each kind of tokenizer ckpt/, which has HuggingFaceModel's state_dict() and get_metadata() as the Trainer
             saves them, with torch.save or as a DCP directory, and want/: what save_pretrained() of the tokenizer and the config writes.

Checked here: what Composer's own load_huggingface_tokenizer_from_saved_state() writes is the same, but for an empty line that it adds to vocab.txt.
"""
import json
import pathlib
import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp
import transformers
from composer.models import HuggingFaceModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "composer-hf"
TEXT = ["the quick brown fox. jumps / over {the} lazy dog; é \"quoted\" back\\slash 😀 v1.2.3 0 1 2 10"] * 9


def bpe(_):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=72, special_tokens=["<s>", "</s>"]))
    out = transformers.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>")
    out.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    return out


def bert(top):
    (top / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "é", ".", "0", "1"]) + "\n")
    return transformers.BertTokenizer(str(top / "vocab.txt"))


def spm(top):
    import sentencepiece
    (top / "text").write_text("\n".join(TEXT))
    sentencepiece.SentencePieceTrainer.train(input=str(top / "text"), model_prefix=str(top / "s"), vocab_size=60, hard_vocab_limit=False, normalization_rule_name="identity")
    return transformers.LlamaTokenizer(str(top / "s.model"))


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for kind, how in ((bpe, "full"), (bert, "full"), (spm, "sharded")):
        torch.manual_seed(3)
        top = pathlib.Path(tempfile.mkdtemp())
        at, tokenizer = OUT / kind.__name__, kind(top)
        config = transformers.LlamaConfig(vocab_size=72, hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
                                          num_key_value_heads=1, max_position_embeddings=64, id2label={0: "no", 1: "yes"})
        model = HuggingFaceModel(transformers.LlamaForCausalLM(config), tokenizer=tokenizer, use_logits=True)
        state = {"state": {"model": model.state_dict(), "integrations": {"huggingface": model.get_metadata()}}, "rng": []}
        (at / "ckpt").mkdir(parents=True)
        if how == "full":
            torch.save(state, at / "ckpt" / "ep0-ba1-rank0.pt")
        else:
            dcp.save(state, checkpoint_id=at / "ckpt" / "ep0-ba1")
        tokenizer.save_pretrained(at / "want")
        config.save_pretrained(at / "want")
        HuggingFaceModel.load_huggingface_tokenizer_from_saved_state(state["state"]["integrations"]["huggingface"], tokenizer_save_dir=str(top / "own"))
        for path in (top / "own").iterdir():
            own, want = path.read_bytes(), (at / "want" / path.name).read_bytes()
            assert json.loads(own) == json.loads(want) if path.suffix == ".json" else own in (want, want + b"\n"), path
        shutil.rmtree(top)


main()
