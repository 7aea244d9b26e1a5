/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: from a text or a name to a layout. The grammar is specified in core/LAYOUT.md.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/model/layout/rule.h"

struct dcp_err;
struct dcp_layout;

/*
 * Parse @n bytes of a layout file, called @name in messages and by dcp_layout_name(). Also
 * taken: the JSON spellings of LAYOUT.md. -EINVAL: name, line and what is wrong, with the
 * nearest valid thing; -E2BIG; -ENOMEM.
 */
int dcp_layout_parse(const char *name, const char *text, size_t n, struct dcp_layout **out,
		     struct dcp_err *err);

/*
 * A built-in layout: "fsdp<N>", "dim<k>x<N>", "tp<N>:<preset>". -ENOENT: no such name (the
 * message names the nearest); -EINVAL: a malformed built-in name. "mesh:dp2,tp4:<file-stem>" is
 * resolved by callers that know the files: see dcp_layout_on_mesh().
 */
int dcp_layout_named(const char *name, struct dcp_layout **out, struct dcp_err *err);

/* The @i-th preset of "tp<N>:<preset>"; NULL past the last. */
const char *dcp_layout_preset(size_t i);

/* The rules of @l over another mesh, "dp2,tp4", which must have every dim the rules name. */
int dcp_layout_on_mesh(const struct dcp_layout *l, const char *mesh, struct dcp_layout **out,
		       struct dcp_err *err);

/*
 * layout_int: what the readers of layouts share. JSON and text become rules (layout.c, text.c), a
 * rule's words become placements (text.c), with their globs, lists and arguments (lists.c).
 */

/* Where a parser stands. */
struct layout_parse {
	struct dcp_layout *l;
	unsigned line;
	const unsigned *lines; /* the rules' line numbers, when they are known; NULL: counted */
	bool mesh_given;       /* mesh lines are not allowed: the mesh is there already */
	struct dcp_err *err;
};

/* lists.c, text.c */

int dcp_layout_bad(const struct layout_parse *ps, int code, const char *fmt, ...)
	DCP_PRINTF(3, 4);
#define bad(ps, ...) dcp_layout_bad(ps, -EINVAL, __VA_ARGS__)
/* ", nearest is X" in @out, or nothing, for a word that is none of @known (NULL-ended). */
void dcp_layout_nearest(char *out, size_t size, const char *word, const char *const *known);
/* The next word at *@s: up to a blank outside of brackets. 0: none is left on the line. */
size_t dcp_layout_next_word(const char **s, const char *end);
/* Is it a word of the grammar, or so near to a word that the word was probably meant? */
bool dcp_layout_is_word(const char *text, size_t n);
int dcp_layout_mesh_words(struct layout_parse *ps, const char *text, size_t n);
/* Parse lines into @ps->l, which has no rules yet. */
int dcp_layout_lines(struct layout_parse *ps, const char *text, size_t n);
/* A rule begins; globs and placements (dcp_layout_place) follow; then it is checked. */
int dcp_layout_rule_begin(struct layout_parse *ps);
int dcp_layout_rule_glob(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_rule_end(struct layout_parse *ps);

/* text.c */

/* Words of the grammar that begin a placement, NULL-ended. */
extern const char *const dcp_layout_place_words[];
bool dcp_layout_is_place(const char *text, size_t n);
/* One word into placements of the last rule. */
int dcp_layout_place(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_place_add(struct layout_parse *ps, const struct place *p);
int dcp_layout_mesh_find(const struct layout_parse *ps, const char *name, size_t n,
			 uint32_t *out);

/* lists.c: the arguments of one placement */

struct layout_arg {
	char name[24]; /* "" for a bare number or list */
	bool has_value, is_list;
	int64_t value;
	const uint64_t *list;
	size_t nlist;
};

struct dcp_layout_args {
	struct layout_arg arg[8];
	size_t n;
	const char *end; /* after the closing bracket */
};

/* "(" to ")" at @s, or nothing where no bracket stands there. */
int dcp_layout_args(struct layout_parse *ps, const char *s, const char *end,
		    struct dcp_layout_args *out);
/* Decimal at *@s, moved past it; false: none, or it does not fit. */
bool dcp_layout_int(const char **s, const char *end, int64_t *out);
size_t dcp_layout_word(const char *s, const char *end);

/* lists.c: "[Shard(0), Replicate()]", "dims_mapping=[-1,0]", "only(pp=0)" */
int dcp_layout_list(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_only(struct layout_parse *ps, const char *text, size_t n);

/* Compile @n bytes into @out; -EINVAL or -E2BIG with a message. */
int dcp_layout_glob_init(struct layout_parse *ps, const char *text, size_t n, struct glob *out);
