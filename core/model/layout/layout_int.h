/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: what its files share. A key finds its rule (glob.c), a rule becomes a cut (cut.c, with
 * the arithmetic of split.c), and everything prints (print.c).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/model/layout/rule.h"

struct dcp_buf;

/* glob.c */

/* The rule one of whose globs is nearest to @key; UINT32_MAX: there are no rules. */
uint32_t dcp_layout_glob_nearest(const struct dcp_layout *l, const char *key,
				 const struct glob **out);

/* cut.c */

/* The dimension of a tensor that @p cuts. */
enum { LAYOUT_DIM_WHOLE = -1, LAYOUT_DIM_NONE = -2 }; /* left whole; it cannot be cut */
int dcp_layout_dim(const struct place *p, uint32_t ndim);
bool dcp_layout_range_has(const struct dcp_layout *l, const struct place_range *r, uint32_t at);

/* split.c */

struct slice {
	uint64_t lo, n;
};

/* What one part takes of a length: slices in ascending order, not touching the end. */
struct slices {
	struct slice one; /* v points here when there is one */
	struct slice *v;
	size_t n;
	uint64_t len; /* of the result: the slices and zeros after them */
};

/* Part @index of @parts of a length of @n. -EINVAL or -E2BIG: the reason in @why. */
int dcp_layout_split(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		     struct dcp_arena *arena, struct slices *out, char *why, size_t why_size);
/* [lo, lo + n) of part @index, for the kinds that give one slice. */
int dcp_layout_part(enum split_kind kind, const struct place *p, uint32_t parts, uint32_t index,
		    uint64_t n, struct slice *out, char *why, size_t why_size);
/* Take @s of an axis. */
int dcp_layout_axis_take(struct dcp_axis *axis, const struct slices *s,
			 struct dcp_arena *arena);

/* print.c */
void dcp_layout_print_place(const struct dcp_layout *l, const struct place *p,
			    struct dcp_buf *out);
