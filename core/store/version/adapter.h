/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters: versions whose weights are added to those of a model that lies elsewhere. */
#pragma once
#include <stdbool.h>

struct dcp_assets;
struct dcp_index;

/* A kind of them, by the program that loads it. Constants. */
struct dcp_adapter {
	const char *stem; /* what the name of its one file begins with */
	const char
		*config; /* the file that the program cannot do without; NULL: it asks none */
	const char *loader; /* the program; NULL: not known */
	const char *use;    /* lines of Markdown: how it is loaded */
};

/*
 * The kind that the keys of @ix and the files beside them say: 1 and *@out, which is NULL where
 * it is no adapter; -errno. Low-rank weights count only where no other weights are with them;
 * of a model that PEFT wraps, which has its adapter among the model's weights, one key is enough
 * if @wrapped.
 */
int dcp_adapter_find(struct dcp_index *ix, const struct dcp_assets *assets, bool wrapped,
		     const struct dcp_adapter **out);
