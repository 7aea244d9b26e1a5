/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rules: what its files share. Text becomes rules (parse.c), a key finds its rule (op.c),
 * keys become groups of sources that are mapped together (map.c).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/model/tensor.h"
#include "core/rules/rules.h"

#define RULES_MAX_ARENA (64u << 20)
#define RULES_NO_SLOT UINT8_MAX

enum pattern_kind { PATTERN_LITERAL, PATTERN_STAR, PATTERN_NUMBER, PATTERN_NAME };

/* One part of a pattern; @add and @word are of a number on the right side. */
struct pattern_op {
	enum pattern_kind kind;
	uint8_t slot;
	uint32_t n; /* bytes of a literal */
	const char *text;
	uint64_t add; /* is added to it, or taken from it */
	bool minus;
	uint32_t
		word; /* not 0: not @add, but the number of config.json with this number less one */
};

struct pattern {
	const char *text; /* as written */
	const struct pattern_op *op;
	uint32_t nop;
	uint32_t slots; /* which it has, a bit each */
	unsigned column;
};

/* What a slot stands for in one key. */
struct slot_value {
	const char *s;
	size_t n;
	uint64_t number;
};

#define RULES_MAX_FACTORS 4 /* of one amount */
#define RULES_MAX_OPS 32    /* of one rule */
#define RULES_MAX_ARGS 64   /* of one operation */

/* "128", "-1", "heads*head_dim": factors from left to right, each multiplied or divided by. */
struct amount {
	struct factor {
		bool divide;
		int word; /* a number of config.json, see config.c; -1: the value */
		uint64_t value;
	} f[RULES_MAX_FACTORS];
	uint32_t n;
	bool minus;
};

/* What rows of queries, keys and values in one tensor stand for, slowest first. */
enum qkv_order {
	QKV_GROUPS,      /* groups; in each query heads, a key head, a value head */
	QKV_PARTS_FIRST, /* query, key, value; heads; elements of a head */
	QKV_PARTS_LAST,  /* heads; elements of a head; query, key, value */
	QKV_STORED,      /* what the source says; groups where it says nothing */
};

struct op {
	const struct op_def *def;
	const struct amount *arg;
	uint32_t narg;
	uint8_t slot; /* {e}, or RULES_NO_SLOT */
	bool is_list; /* split: sizes, not a number of parts */
	enum qkv_order order;
	enum dcp_dtype dtype;
};

/* Tensors on their way through the operations of a rule: k lists of e each. */
struct work;
struct flow {
	struct work *w; /* k * e */
	size_t k, e;
	struct flow_axis { /* what e counts, by slot: the last one changes from one to the next */
		uint8_t slot;
		size_t n;
	} axis[DCP_RULES_MAX_SLOTS];
	uint32_t naxis;
};

struct run {
	const struct dcp_rules_config *config;
	const char *qkv_order; /* of the source */
	struct dcp_arena *arena;
	struct dcp_err *err;
};

enum op_slot {
	OP_SLOT_NEVER,
	OP_SLOT_JOINS,  /* the keys that differ in it; without one the lists */
	OP_SLOT_COUNTS, /* what is made of each; always there */
};

#define OP_DIMS_ALL UINT8_MAX

/* What an operation is: as text, and what it does. */
struct op_def {
	const char *name, *usage;
	uint8_t least, most; /* numbers after the name */
	uint8_t dims;        /* which of them are dimensions, so may be -1: a bit each */
	enum op_slot slot;
	bool list;      /* a list as its last argument, too: sizes of parts */
	bool dtype;     /* its one argument is a type */
	bool per;       /* several numbers are one for each tensor */
	bool order;     /* after its numbers, or not at all: an order of rows */
	uint8_t of, to; /* tensors; 0: any, and as many as there were */
	int (*each)(struct run *r, const struct op *op, struct work *w); /* or */
	int (*all)(struct run *r, const struct op *op, struct flow *f);
};

struct rule {
	bool drop, refuse; /* refuse: a key is reported as if no rule took it */
	unsigned line;
	const struct pattern *src, *dst;
	uint32_t nsrc, ndst;
	const char *slot_name[DCP_RULES_MAX_SLOTS]; /* "i"; "*" of a star */
	uint32_t nslot;
	const struct op *op;
	uint32_t nop;
	uint8_t join;     /* slot whose keys become one tensor; RULES_NO_SLOT: none */
	uint8_t name;     /* slot {from}; RULES_NO_SLOT: none */
	const char *says; /* only where adapter_config.json says this; NULL: always */
	uint32_t of;      /* of which of the words that rules ask it for */
	uint32_t equal
		[2]; /* only where these words of config.json are, numbered from 1; 0: always */
	uint32_t each; /* slots of the right side that unstack() counts, a bit each */
	const char *each_at[DCP_RULES_MAX_SLOTS]; /* in the text, until its unstack() is read */
};

/* strip, erase */
struct affix {
	const char *text;
	size_t n;
};

struct tie {
	const char *key, *of;
};

/* has, lacks, fewer: patterns of keys by which a preset is known. */
struct mark {
	enum mark_kind { MARK_HAS, MARK_LACKS, MARK_FEWER } kind;
	const struct pattern *pattern;
	uint32_t n;
};

struct dcp_rules {
	struct dcp_arena arena;
	const char *name;
	const char *other; /* else: what is said of keys that no rule fits; may be NULL */
	uint64_t hash;
	struct rule *rule;
	struct affix *strip, *erase;
	struct tie *tie;
	struct mark *mark;
	struct affix *model; /* of model_type */
	size_t nrule, nstrip, nerase, ntie, nmark, nmodel;
	size_t rule_cap, strip_cap, erase_cap, tie_cap, mark_cap, model_cap;
};

/* Bytes of a text. */
struct word {
	const char *s;
	size_t n; /* 0: the line ends here */
};

/* Where the parser stands. */
struct rules_parse {
	struct dcp_rules *r;
	const char *line_text, *end;
	unsigned line;
	struct dcp_err *err;
};

/* made of presets/ when this is built */
extern const struct dcp_rules_preset dcp_rules_presets[];
extern const size_t dcp_rules_npresets;

/* op.c */

/* What is wrong at @at of the line. */
int dcp_rules_bad(const struct rules_parse *ps, const char *at, int code, const char *fmt, ...)
	DCP_PRINTF(4, 5);
#define bad_text(ps, at, ...) dcp_rules_bad(ps, at, -EINVAL, __VA_ARGS__)

/* Compile @n bytes at @s into @out; slots are those of @rule, new ones only if @is_source. */
int dcp_rules_pattern(struct rules_parse *ps, struct rule *rule, const char *s, size_t n,
		      bool is_source, struct pattern *out);
/* Slots matched into @value (DCP_RULES_MAX_SLOTS), which point into @key. */
bool dcp_rules_match(const struct pattern *p, const char *key, size_t n,
		     struct slot_value *value);
/* The key that @p makes of the slots, appended to @out. -ERANGE: a number would be negative or
 * leave 64 bits; -EINVAL: config.json does not say what is added. */
struct dcp_buf;
int dcp_rules_expand(const struct pattern *p, const struct slot_value *value,
		     const struct dcp_rules_config *config, struct dcp_buf *out);

/* config.c */

/* The numbers of config.json that rules call by name. */
extern const size_t dcp_rules_nwords;
const char *dcp_rules_word(size_t i);
/* The word that the @n bytes at @s spell; -1: they spell none. */
int dcp_rules_word_at(const char *s, size_t n);
/* Its number @i; 0: config.json does not say. */
uint64_t dcp_rules_word_value(size_t i, const struct dcp_rules_config *config);
/* -EINVAL: config.json does not say, or the numbers do not divide. */
int dcp_rules_amount(const struct amount *a, const struct dcp_rules_config *config,
		     uint64_t *out, struct dcp_err *err);

/* expect.c */

/* Is it of what optimizers keep? */
bool dcp_rules_is_training(const char *key);

/* op.c */

/* The operations at @s, up to the end of the line, into @rule; they fit its keys. */
int dcp_rules_ops(struct rules_parse *ps, struct rule *rule, const char *s);

/* config.c: what the operations rope, unrope, qkv, fuse_qkv do; orders of rows */

/* Its number and name; @order stays as it is where none is called so. */
bool dcp_rules_qkv_order(const char *name, size_t n, enum qkv_order *order);

int dcp_rules_rope(struct run *r, const struct op *op, struct flow *f);
int dcp_rules_qkv(struct run *r, const struct op *op, struct flow *f);
int dcp_rules_fuse_qkv(struct run *r, const struct op *op, struct flow *f);

/* flow.c */

extern const struct op_def dcp_rules_op_defs[];
extern const size_t dcp_rules_nop_defs;

/* -EINVAL and the like: the key cannot be made, the reason in @err; -ENOMEM. */
int dcp_rules_flow(const struct rule *rule, const struct dcp_rules_source *from, struct flow *f,
		   struct dcp_arena *arena, struct dcp_err *err);

/* map: the keys of a source being mapped: matched, grouped and emitted (map.c), made
 * (detect.c). */

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

/* detect.c */

enum linear {
	LINEAR_NONE,    /* no weight that may be a linear one */
	LINEAR_UNKNOWN, /* there are some, which do not say */
	LINEAR_OUT_IN,  /* [outputs, inputs], as torch has them */
	LINEAR_IN_OUT,  /* as Paddle has them */
};

/*
 * work: a tensor while operations change its shape: bits of stored items, each a box of the
 * current tensor, with strides.
 *
 * Every function puts new bits, made in its arena, in the place of those that @w has, which
 * others may share. They return 0, -ENOMEM, or -EINVAL or -E2BIG with the reason in its err, one
 * line without the key; then @w is of no more use.
 */

struct dcp_arena;
struct dcp_err;

/* [lo, lo + len) of the tensor; neighbours are stride elements apart in the stored item. */
struct bit_dim {
	uint64_t lo, len, stride;
};

struct bit {
	const struct dcp_piece *of; /* the stored item it is a part of */
	uint32_t of_ndim;           /* dimensions of its box */
	uint64_t first;             /* its first element, counted in the item's elements */
	uint64_t item_n;            /* elements of the item */
	struct bit_dim *dim;        /* ndim of them, none empty */
};

struct work {
	uint32_t ndim;
	uint32_t itemsize;
	enum dcp_dtype dtype, cast;
	const char *dtype_name;
	uint64_t shape[DCP_MAX_NDIM];
	struct bit *bit;
	size_t n;
	struct dcp_arena *arena; /* of new bits */
	struct dcp_err *err;
};

/* The tensor as it is stored. @t must outlive whatever is made of it. */
int dcp_work_from(const struct dcp_tensor *t, struct dcp_arena *arena, struct work *out,
		  struct dcp_err *err);
/* Set dtype, shape and pieces of @out, and nothing else. */
int dcp_work_done(const struct work *w, struct dcp_arena *arena, struct dcp_tensor *out);

/* Dimension i becomes what order[i] was. */
int dcp_work_permute(struct work *w, const uint32_t *order);
/* The same elements in row-major order, in another shape of as many. */
int dcp_work_reshape(struct work *w, uint32_t ndim, const uint64_t *shape);
/* Elements [lo, lo + n) of dimension @d; -EINVAL where it has fewer. */
int dcp_work_narrow(struct work *w, uint32_t d, uint64_t lo, uint64_t n);
/* Dimension @d extended with zeros at its end to @n elements, no fewer than it has. */
int dcp_work_pad(struct work *w, uint32_t d, uint64_t n);
/* A new dimension of one element before dimension @d. */
int dcp_work_insert(struct work *w, uint32_t d);
/* Dimension @d as two: the shares it was stored in, each for itself and all equally long, and
 * what is in each. */
int dcp_work_shares(struct work *w, uint32_t d);
/* @k tensors end to end along dimension @d, into @out; -EINVAL where they differ in more than
 * that. */
int dcp_work_concat(const struct work *w, size_t k, uint32_t d, struct work *out);

/* A work whose bits are replaced, one by one. */
struct making {
	struct work was;
	struct work *w;
	size_t cap;
};
