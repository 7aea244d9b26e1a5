/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: what its files share. Text becomes rules (layout_text, layout_json), a rule's
 * words become placements (layout_place, layout_torch), a key finds its rule (layout_glob),
 * a rule becomes a cut (layout_cut, with the arithmetic of layout_split), and everything
 * prints (layout_print).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"
#include "core/model/layout/layout.h"

struct dcp_buf;

#define LAYOUT_MAX_NAME 31   /* bytes of a mesh dimension's name */
#define LAYOUT_MAX_NUMBERS 8 /* {} of one glob; as many as dcp_layout_rule.stage has */
#define LAYOUT_MAX_PLACES 32 /* placements of one rule */
#define LAYOUT_MAX_ARENA (64u << 20)

enum glob_op_kind { GLOB_LITERAL, GLOB_STAR, GLOB_ANY, GLOB_NUMBER };

struct glob_op {
	enum glob_op_kind kind;
	uint32_t n;       /* bytes of a literal */
	const char *text; /* of a literal, escapes resolved */
	uint64_t lo, hi;  /* of a number, both included */
};

struct glob {
	const char *text; /* as written */
	const struct glob_op *op;
	uint32_t nop, nnumber;
	size_t min;     /* bytes of the shortest key */
	uint64_t pairs; /* that its literals hold */
};

enum split_kind {
	SPLIT_CHUNK, /* torch's rule */
	SPLIT_BALANCED,
	SPLIT_EVEN,
	SPLIT_LAST,
	SPLIT_PAD,
	SPLIT_SIZES,
	SPLIT_TIGHT, /* of flat: as SPLIT_CHUNK, where its default is SPLIT_PAD */
};

enum place_kind {
	PLACE_SHARD,
	PLACE_COLWISE,
	PLACE_ROWWISE,
	PLACE_STRIDED,
	PLACE_INTERLEAVE,
	PLACE_FLAT,
	PLACE_ONLY,
	PLACE_STAGE,
};

/* Coordinates [lo, hi] of a mesh dimension, as written: negative counts from the end. */
struct place_range {
	uint32_t mesh_dim;
	int32_t lo, hi;
};

struct place {
	enum place_kind kind;
	enum split_kind split;
	bool optional;
	uint32_t mesh_dim;
	int32_t dim;
	uint64_t arg;           /* split factor, block, multiple of flat(pad=), layers */
	const uint64_t *number; /* sizes= or groups= */
	size_t nnumber;
	bool grouped;
	uint64_t sum;                    /* of number[] */
	const struct place_range *range; /* of only */
	size_t nrange;
};

struct rule {
	uint32_t glob, nglob;   /* in layout.glob */
	uint32_t place, nplace; /* in layout.place */
	bool drop;
	unsigned line;
};

struct dcp_layout {
	struct dcp_arena arena; /* names, texts, numbers */
	const char *name;
	struct dcp_mesh mesh;
	uint32_t nranks;
	uint64_t hash;
	struct rule *rule;
	struct glob *glob;
	struct place *place;
	size_t nrule, nglob, nplace;
	size_t rule_cap, glob_cap, place_cap;
	size_t nlisted; /* numbers in all lists, against the limit */
};

/* Where a parser stands. */
struct layout_parse {
	struct dcp_layout *l;
	unsigned line;
	const unsigned *lines; /* the rules' line numbers, when they are known; NULL: counted */
	bool mesh_given;       /* mesh lines are not allowed: the mesh is there already */
	struct dcp_err *err;
};

/* text.c */

int dcp_layout_bad(const struct layout_parse *ps, int code, const char *fmt, ...)
	DCP_PRINTF(3, 4);
/* ", nearest is X" in @out, or nothing, for a word that is none of @known (NULL-ended). */
void dcp_layout_nearest(char *out, size_t size, const char *word, const char *const *known);
/* The next word at *@s: up to a blank outside of brackets. 0: none is left on the line. */
size_t dcp_layout_next_word(const char **s, const char *end);
/* Is it a word of the grammar, or so near to one that it was probably meant? */
bool dcp_layout_is_word(const char *text, size_t n);
int dcp_layout_mesh_words(struct layout_parse *ps, const char *text, size_t n);
/* Parse lines into @ps->l, which has no rules yet. */
int dcp_layout_lines(struct layout_parse *ps, const char *text, size_t n);
/* A rule begins; globs and placements (dcp_layout_place) follow; then it is checked. */
int dcp_layout_rule_begin(struct layout_parse *ps);
int dcp_layout_rule_glob(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_rule_end(struct layout_parse *ps);

/* tp_plan.c */
int dcp_layout_json(struct layout_parse *ps, const char *text, size_t n);

/* placement.c */

/* Words of the grammar that begin a placement, NULL-ended. */
extern const char *const dcp_layout_place_words[];
bool dcp_layout_is_place(const char *text, size_t n);
/* One word into placements of the last rule. */
int dcp_layout_place(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_place_add(struct layout_parse *ps, const struct place *p);
int dcp_layout_mesh_find(const struct layout_parse *ps, const char *name, size_t n,
			 uint32_t *out);

/* args.c: the arguments of one placement */

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
	const char *end; /* behind the closing bracket */
};

/* "(" to ")" at @s, or nothing where no bracket stands there. */
int dcp_layout_args(struct layout_parse *ps, const char *s, const char *end,
		    struct dcp_layout_args *out);
const char *dcp_layout_blanks(const char *s, const char *end);
/* Decimal at *@s, moved past it; false: none, or it does not fit. */
bool dcp_layout_int(const char **s, const char *end, int64_t *out);
size_t dcp_layout_word(const char *s, const char *end);

/* lists.c: "[Shard(0), Replicate()]", "dims_mapping=[-1,0]", "only(pp=0)" */
int dcp_layout_list(struct layout_parse *ps, const char *text, size_t n);
int dcp_layout_only(struct layout_parse *ps, const char *text, size_t n);

/* glob.c */

/* Compile @n bytes into @out; -EINVAL or -E2BIG with a message. */
int dcp_layout_glob_init(struct layout_parse *ps, const char *text, size_t n, struct glob *out);
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
	uint64_t len; /* of the result: the slices and zeros behind them */
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
void dcp_layout_print_rules(const struct dcp_layout *l, struct dcp_buf *out);
