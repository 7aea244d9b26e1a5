/* SPDX-License-Identifier: Apache-2.0 */
/* layout: turns a text or a name into a layout. core/LAYOUT.md specifies the grammar. */
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
 * Parse @n bytes of a layout file; @name is its name in messages and for dcp_layout_name(). The
 * JSON spellings of LAYOUT.md are also accepted. Returns 0, -EINVAL (@err has the name, the line,
 * the mistake and the nearest valid word), -E2BIG or -ENOMEM.
 */
int dcp_layout_parse(const char *name, const char *text, size_t n, struct dcp_layout **out,
		     struct dcp_err *err);

/*
 * Make a built-in layout: "fsdp<N>", "dim<k>x<N>", "tp<N>:<preset>". -ENOENT: no such name (the
 * message has the nearest name); -EINVAL: a malformed built-in name. Callers that know the
 * layout files resolve "mesh:dp2,tp4:<file-stem>" themselves: see dcp_layout_on_mesh().
 */
int dcp_layout_named(const char *name, struct dcp_layout **out, struct dcp_err *err);

/* The @i-th preset of "tp<N>:<preset>"; NULL past the last. */
const char *dcp_layout_preset(size_t i);

/* Make a layout with the rules of @l and another mesh, "dp2,tp4", which must have every dimension
 * that the rules name. */
int dcp_layout_on_mesh(const struct dcp_layout *l, const char *mesh, struct dcp_layout **out,
		       struct dcp_err *err);

/*
 * layout_int: declarations for the parsers of layouts. layout.c reads JSON and text.c reads lines
 * into rules; text.c reads the words of a rule into placements; lists.c reads globs, lists and
 * arguments.
 */

/* The state of a parser. */
struct layout_parse {
	struct dcp_layout *l;
	unsigned line;
	const unsigned *lines; /* line number of each rule, if known; NULL: count the lines */
	bool mesh_given;       /* the mesh is already known: mesh lines are not allowed */
	struct dcp_err *err;
};

/* lists.c, text.c */

int dcp_layout_bad(const struct layout_parse *ps, int code, const char *fmt, ...)
	DCP_PRINTF(3, 4);
#define bad(ps, ...) dcp_layout_bad(ps, -EINVAL, __VA_ARGS__)
/* Write ", nearest is X" into @out for @word, which is not in @known (NULL-ended); "" if no known
 * word is near. */
void dcp_layout_nearest(char *out, size_t size, const char *word, const char *const *known);
/* Length of the next word at *@s: up to a blank outside of brackets. 0: no word is left on the
 * line. */
size_t dcp_layout_next_word(const char **s, const char *end);
/* Is @text a word of the grammar, or so similar to a word that the user probably meant it? */
bool dcp_layout_is_word(const char *text, size_t n);
int dcp_layout_mesh_words(struct layout_parse *ps, const char *text, size_t n);
/* Parse the lines of @text into @ps->l, which has no rules yet. */
int dcp_layout_lines(struct layout_parse *ps, const char *text, size_t n);
/* Begin a rule; add its globs and its placements (dcp_layout_place); end it, which checks it. */
int dcp_layout_rule_begin(struct layout_parse *ps);
int dcp_layout_rule_glob(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_rule_end(struct layout_parse *ps);

/* text.c */

/* Words of the grammar that begin a placement, NULL-ended. */
extern const char *const dcp_layout_place_words[];
bool dcp_layout_is_place(const char *text, size_t n);
/* Add the placements that one word describes to the last rule. */
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

/* Parse the arguments from "(" to ")" at @s; none if there is no bracket at @s. */
int dcp_layout_args(struct layout_parse *ps, const char *s, const char *end,
		    struct dcp_layout_args *out);
/* Parse the decimal number at *@s and move *@s past it; false: no number, or it does not fit. */
bool dcp_layout_int(const char **s, const char *end, int64_t *out);
size_t dcp_layout_word(const char *s, const char *end);

/* lists.c: "[Shard(0), Replicate()]", "dims_mapping=[-1,0]", "only(pp=0)" */
int dcp_layout_list(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_only(struct layout_parse *ps, const char *text, size_t n);

/* Compile the glob of @n bytes into @out; -EINVAL or -E2BIG with a message. */
int dcp_layout_glob_init(struct layout_parse *ps, const char *text, size_t n, struct glob *out);
