/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sections: a pickled object whose fields are huge dicts, taken pair by pair.
 *
 * Metadata of a checkpoint is one object of a few dicts with millions of entries. Most pairs are
 * handed over while the machine reads, which then forgets them; those of a dict that was already
 * complete, or of an OrderedDict, follow at the end. So pairs of different sections come in any
 * order, those of one section in their own.
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
	/* Called for each pair; a negative return ends the reading. */
	int (*add)(void *ctx, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err);
};

#define DCP_SECTIONS_MAX 8

struct dcp_sections {
	const struct dcp_section *section;
	size_t n;
	/* Can the dict above @where on the stack be skipped, whatever it holds? May be NULL. */
	bool (*skip)(struct dcp_pv where);
	/* Called with the object, before the rest of its sections is handed over. */
	int (*root)(void *ctx, struct dcp_pv root, struct dcp_err *err);
	void *ctx;
};

/* Returns 0, -EBADMSG (a section is not a dict), what a callback gave, or what the pickle gave. */
int dcp_sections_read(const struct dcp_sections *s, const struct dcp_source *src,
		      struct dcp_err *err);

/* Copy the text of @v, if it is one and fits, into the @n bytes of @out; else leave @out alone. */
void dcp_sections_fact(char *out, size_t n, struct dcp_pv v);
