/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_int: what the files behind state.h share; only they include it.
 */
#pragma once
#include "core/format/torch/state.h"
#include "core/parse/pyjson/pyjson.h"

struct dcp_arena;

/*
 * FSDP's LOCAL_STATE_DICT: a rank's part of many parameters laid end to end, under a name of
 * its own. Which ones, and where, only the program knew: the reason, or NULL for other leaves.
 */
const char *dcp_tstate_flat(const struct dcp_leaf *leaf);

/* Emit a leaf that dcp_tshard_is(). @arena is emptied first. */
int dcp_tstate_shard(const struct dcp_tstate *s, const struct dcp_leaf *leaf, const char *key,
		     struct dcp_arena *arena);
