#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the golden checkpoints of PyTorch again, by hand: the suite never runs this.
# Each variable names the python of a virtual environment that holds
#   T215   torch 2.15.0, numpy, safetensors, zstandard      T113   torch 1.13.1 (python 3.7)
#   PADDLE paddlepaddle 3.3.1, numpy                        DS     deepspeed 0.19.8 on that torch
#   COMPOSER mosaicml 0.32.1                                ARRAYS what array_files.py names
#   T212   torch 2.1.2, 'numpy<2' (python 3.10)             T241   torch 2.4.1, 'numpy<2'
# and T215 transformers 5.23.0 and torch_checkpointing 0.1.1, with OLD a directory where 0.1.0 is unpacked,
# T241 transformers 4.46.3 and safetensors besides.
# Files land in tests/golden, or in $GOLDEN. Tensor values are the same every time (they depend
# on the key alone); framework identifiers inside the pickles are not.
set -eu
cd "$(dirname "$0")"
for f in dcp_fsdp2 dcp_tp_fsdp dcp_plain dcp_tools torch_save hf_models ranks fairseq2_ranks hostile; do
	"$T215" $f.py
done
OLD="$OLD" "$T215" torch_items.py
"$T241" hf_bin.py
for python in "$T113" "$T212" "$T241"; do
	"$python" dcp_old.py
done
"$DS" deepspeed_run.py
PADDLE="$PADDLE" "$T215" cuts.py
"$T215" tp_plans.py
"$T215" hf_shapes.py
"$T215" composer_ranks.py
"$COMPOSER" composer_run.py
"$ARRAYS" array_files.py
