/* SPDX-License-Identifier: Apache-2.0 */
/* map: the keys of a source being mapped: matched, grouped and emitted (map.c), made
 * (detect.c). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/rules/rules_int.h"

/* A key of the source that some rule takes. */
struct hit {
	uint64_t number;
	uint64_t member; /* the number in the slot that is joined over; 0: there is none */
	uint32_t key;    /* in map.keys */
	uint32_t group;
	uint32_t src; /* which pattern of the left side */
};

struct group {
	uint32_t rule, hit, nhit; /* by number; its hits are consecutive */
};

/* A key that comes out: the group that makes it, and another that would. */
struct made {
	uint32_t by, also; /* UINT32_MAX: none */
	bool emitted;
};

struct map {
	const struct dcp_rules *r;
	const struct dcp_rules_source *from;
	const struct dcp_sink *to;
	struct dcp_rules_report *report;
	struct dcp_intern keys, out,
		ids; /* as the source has them; as they come out; of groups */
	struct hit *hit;
	struct group *group;
	uint32_t *group_of_id; /* by number in ids */
	struct made *made;     /* by number in out */
	bool *used;            /* by rule */
	size_t nhit, hit_cap, ngroup, group_cap, id_cap, made_cap;
	uint32_t *hit_of_key; /* once hits are sorted */
	uint32_t *file; /* number of each file at the sink, plus one; 0: not emitted yet */
	struct dcp_intern names; /* that {from} stands for */
	uint32_t name;           /* whose keys are taken; DCP_INTERN_NONE: of none */
	struct dcp_arena arena;
	struct dcp_buf text, made_text;
	struct dcp_err *err;
};

/* detect.c */
void dcp_rules_say(const struct map *m, enum dcp_rules_what what, const char *key,
		   unsigned line, const char *text);
/* The key without the parts that the rules erase: itself, or in @text. */
const char *dcp_rules_without_parts(const struct dcp_rules *r, const char *key,
				    struct dcp_buf *text);
/* The key as patterns see it: parts erased, prefixes stripped. In @text. */
const char *dcp_rules_bare_key(const struct dcp_rules *r, const char *key,
			       struct dcp_buf *text);
const char *dcp_rules_key_of(const struct map *m, const struct hit *h);
/* Put the tensors of a group through its rule into @f; on failure a negative errno, with the
 * reason in @why. @first receives the group's first source even then, if it can be read. */
int dcp_rules_make(struct map *m, const struct group *g, struct flow *f,
		   struct dcp_tensor *first, struct dcp_err *why);
/* How many members there are of what a group's rule unstacks, also where a later operation
 * failed. */
uint64_t dcp_rules_members(const struct map *m, const struct group *g, const struct flow *f);
/* The key that pattern @dst makes of a group, for member @member of those; @f may be NULL for
 * member
 * 0. Valid until the next call. As dcp_rules_expand(). */
int dcp_rules_key_made(struct map *m, const struct group *g, const struct flow *f, uint32_t dst,
		       uint64_t member, const char **out);

/* map.c */
int dcp_rules_emit_group(struct map *m, uint32_t number);

/* detect.c */

enum linear {
	LINEAR_NONE,    /* no weight that may be a linear one */
	LINEAR_UNKNOWN, /* there are some, which do not say */
	LINEAR_OUT_IN,  /* [outputs, inputs], as torch has them */
	LINEAR_IN_OUT,  /* as Paddle has them */
};

/* How are linear weights stored? A negative return is the source's. */
int dcp_rules_linear(const struct dcp_rules_source *from, enum linear *out,
		     struct dcp_err *err);
