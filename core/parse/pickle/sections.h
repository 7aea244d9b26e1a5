/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sections: a pickled object whose fields are huge dicts, taken pair by pair.
 *
 * Metadata of a checkpoint is one object of a few dicts with millions of entries. Most pairs
 * come while the machine reads, and are forgotten by it at once; those of a dict that came
 * finished, or of an OrderedDict, come when it is done. So pairs of different sections come in
 * any order, those of one in its own.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/parse/pickle/pickle.h"

struct dcp_err;
struct dcp_source;

struct dcp_section {
	const char *name; /* of the field */
	bool optional;    /* it may be missing, or None */
	/* One pair; what it returns below zero ends the reading. */
	int (*add)(void *ctx, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err);
};

#define DCP_SECTIONS_MAX 8

struct dcp_sections {
	const struct dcp_section *section;
	size_t n;
	/* Is the dict that lies on @where of no use, whatever it holds? May be NULL. */
	bool (*skip)(struct dcp_pv where);
	/* Look at the object, before what is left of its sections is taken. */
	int (*root)(void *ctx, struct dcp_pv root, struct dcp_err *err);
	void *ctx;
};

/* Returns 0, -EBADMSG (a section is no dict), what a callback gave, or what the pickle gave. */
int dcp_sections_read(const struct dcp_sections *s, const struct dcp_source *src,
		      struct dcp_err *err);

/* The text of @v, if it is one that fits into the @n bytes of @out; else these stay. */
void dcp_sections_fact(char *out, size_t n, const struct dcp_pv *v);
