/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_int: what the files of the pickle machine share; only they include it. The machine
 * itself: see vm.h.
 *
 * The functions in these headers that are called for nearly every opcode are inline: 59 million
 * opcodes in half a second leave no room for a call each.
 */
#pragma once
#include "core/parse/pickle/memo.h"
#include "core/parse/pickle/node.h"
#include "core/parse/pickle/ops.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pickle/text.h"
#include "core/parse/pickle/window.h"

struct dcp_pickle {
	struct dcp_pv root;
	struct dcp_pkl_mem mem;
};

/* ---- the passes ---- */

/* Pass one over the pickle at @off. */
int dcp_pkl_scan(struct dcp_pkl_win *w, struct dcp_pkl_mem *m, uint64_t off,
		 struct dcp_pkl_memo *memo);

/* dcp_pickle_read() with a window of @window bytes, for tests. */
int dcp_pickle_read_windowed(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
			     size_t window, struct dcp_pickle **out, uint64_t *end,
			     struct dcp_err *err);
