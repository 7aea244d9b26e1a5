/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extras: what lies in a Hugging Face directory beside the weights.
 *
 *	config.json, tokenizer.json, ...   emitted as sidecars
 *	optimizer.pt, scheduler.pt, ...    files of torch.save; their keys get the file's name
 *	                                   in front: optimizer.state.0.exp_avg
 *	consolidated.safetensors, ...      the same weights once more, or nothing dcpfs reads:
 *	                                   the fact "left_out" names them
 */
#pragma once
#include <stdbool.h>

struct dcp_load;

/* Is it a file that belongs to a model but holds no weights? By name. */
bool dcp_hf_is_sidecar(const char *name);

/* May it hold weights? By name. */
bool dcp_hf_may_be_weights(const char *name);

/*
 * Emit all of @in's directory except files for which @shown is true. 0, -ENOMEM or what the sink
 * gave: a file that is broken is emitted as an object with its error.
 */
int dcp_hf_emit_rest(const struct dcp_load *in, bool (*shown)(void *ctx, const char *name),
		     void *ctx);
