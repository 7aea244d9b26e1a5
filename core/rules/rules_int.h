/* SPDX-License-Identifier: Apache-2.0 */
/* rules_int: declarations that the files of rules share. Text becomes rules (parse.c), a key finds
 * its rule (op.c), keys become groups of sources that are mapped together (map.c). */
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

/* One part of a pattern. @add and @word belong to a number on the right side. */
struct pattern_op {
	enum pattern_kind kind;
	uint8_t slot;
	uint32_t n; /* bytes of a literal */
	const char *text;
	uint64_t add; /* is added to the number, or subtracted */
	bool minus;
	uint32_t
		word; /* if not 0: add word number @word of config.json, from 1, in place of @add */
};

struct pattern {
	const char *text; /* as written */
	const struct pattern_op *op;
	uint32_t nop;
	uint32_t slots; /* the slots that occur, one bit each */
	unsigned column;
};

/* What a slot stands for in one key. */
struct slot_value {
	const char *s;
	size_t n;
	uint64_t number;
};

#define RULES_MAX_FACTORS 4 /* factors of one amount */
#define RULES_MAX_OPS 32    /* operations of one rule */
#define RULES_MAX_ARGS 64   /* arguments of one operation */

/* "128", "-1", "heads*head_dim": factors that are applied from left to right, by multiplication or
 * division. */
struct amount {
	struct factor {
		bool divide;
		int word; /* index of a number of config.json, see config.c; -1: use @value */
		uint64_t value;
	} f[RULES_MAX_FACTORS];
	uint32_t n;
	bool minus;
};

/* The order of the rows in a tensor of queries, keys and values; the slowest changing part is named
 * first. */
enum qkv_order {
	QKV_GROUPS,      /* groups; in each query heads, a key head, a value head */
	QKV_PARTS_FIRST, /* query, key, value; heads; elements of a head */
	QKV_PARTS_LAST,  /* heads; elements of a head; query, key, value */
	QKV_STORED,      /* the order that the source states; QKV_GROUPS if it states none */
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

/* Tensors on their way through the operations of a rule: k lists of e tensors each. */
struct work;
struct flow {
	struct work *w; /* k * e */
	size_t k, e;
	struct flow_axis { /* e is the product of these slots; the last changes fastest */
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
	/* the slot whose keys are joined; if no slot is given, the lists are joined */
	OP_SLOT_JOINS,
	OP_SLOT_COUNTS, /* the slot that counts the results of each tensor; required */
};

#define OP_DIMS_ALL UINT8_MAX

/* An operation: its text form and its function. */
struct op_def {
	const char *name, *usage;
	uint8_t least, most; /* smallest and largest count of numbers after the name */
	uint8_t dims; /* which of these numbers are dimensions and may be -1: one bit each */
	enum op_slot slot;
	bool list;      /* the last argument may also be a list: sizes of parts */
	bool dtype;     /* the only argument is a dtype */
	bool per;       /* several numbers mean one number for each tensor */
	bool order;     /* an order of rows may follow the numbers */
	uint8_t of, to; /* count of tensors before and after; 0: any count, and unchanged */
	int (*each)(struct run *r, const struct op *op, struct work *w); /* or */
	int (*all)(struct run *r, const struct op *op, struct flow *f);
};

struct rule {
	bool drop, refuse; /* refuse: keys are reported as if no rule matched */
	unsigned line;
	const struct pattern *src, *dst;
	uint32_t nsrc, ndst;
	const char *slot_name[DCP_RULES_MAX_SLOTS]; /* "i"; "*" of a star */
	uint32_t nslot;
	const struct op *op;
	uint32_t nop;
	uint8_t join; /* the slot whose keys become one tensor; RULES_NO_SLOT: none */
	uint8_t name; /* the slot {from}; RULES_NO_SLOT: none */
	/* the rule holds only if adapter_config.json has this value; NULL: always */
	const char *says;
	uint32_t of; /* of which member: index in dcp_rules_adapter_words */
	/* the rule holds only if two numbers of config.json are equal: their indexes + 1; 0:
	 * always */
	uint32_t equal[2];
	uint32_t each; /* slots of the right side that unstack() counts, a bit each */
	/* where the text names the slot; NULL once its unstack() is read */
	const char *each_at[DCP_RULES_MAX_SLOTS];
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
	/* of a line `else`: the message for keys that no rule matches; may be NULL */
	const char *other;
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

/* generated from presets/ by the build */
extern const struct dcp_rules_preset dcp_rules_presets[];
extern const size_t dcp_rules_npresets;

/* op.c */

/* Write to @err what is wrong at position @at of the line. Returns @code. */
int dcp_rules_bad(const struct rules_parse *ps, const char *at, int code, const char *fmt, ...)
	DCP_PRINTF(4, 5);
#define bad_text(ps, at, ...) dcp_rules_bad(ps, at, -EINVAL, __VA_ARGS__)

/* Compile @n bytes at @s into @out; slots are those of @rule, new ones only if @is_source. */
int dcp_rules_pattern(struct rules_parse *ps, struct rule *rule, const char *s, size_t n,
		      bool is_source, struct pattern *out);
/* Does @key match? Writes the slots to @value (DCP_RULES_MAX_SLOTS elements), which point into
 * @key. */
bool dcp_rules_match(const struct pattern *p, const char *key, size_t n,
		     struct slot_value *value);
/* Append to @out the key that @p makes from the slots. -ERANGE: a number would be negative or leave
 * 64 bits; -EINVAL: config.json does not say what is added. */
struct dcp_buf;
int dcp_rules_expand(const struct pattern *p, const struct slot_value *value,
		     const struct dcp_rules_config *config, struct dcp_buf *out);

/* config.c */

/* The numbers of config.json that rules call by name. */
extern const size_t dcp_rules_nwords;
const char *dcp_rules_word(size_t i);
/* The index of the word in @n bytes at @s; -1: not a word. */
int dcp_rules_word_at(const char *s, size_t n);
/* The value of word @i; 0: not in config.json. */
uint64_t dcp_rules_word_value(size_t i, const struct dcp_rules_config *config);
/* -EINVAL: config.json does not say, or the numbers do not divide. */
int dcp_rules_amount(const struct amount *a, const struct dcp_rules_config *config,
		     uint64_t *out, struct dcp_err *err);

/* expect.c */

/* Is @key part of the state of an optimizer? */
bool dcp_rules_is_training(const char *key);

/* op.c */

/* Parse the operations from @s to the end of the line into @rule and check that they fit its
 * keys. */
int dcp_rules_ops(struct rules_parse *ps, struct rule *rule, const char *s);

/* config.c: what the operations rope, unrope, qkv, fuse_qkv do; orders of rows */

/* Find an order by its name; @order is unchanged if no order has that name. */
bool dcp_rules_qkv_order(const char *name, size_t n, enum qkv_order *order);

int dcp_rules_rope(struct run *r, const struct op *op, struct flow *f);
int dcp_rules_qkv(struct run *r, const struct op *op, struct flow *f);
int dcp_rules_fuse_qkv(struct run *r, const struct op *op, struct flow *f);

/* flow.c */

extern const struct op_def dcp_rules_op_defs[];
extern const size_t dcp_rules_nop_defs;

/* -ENOMEM; any other error: the key cannot be made, for the reason in @err. */
int dcp_rules_flow(const struct rule *rule, const struct dcp_rules_source *from, struct flow *f,
		   struct dcp_arena *arena, struct dcp_err *err);

/* map: the keys of a source while it is mapped: map.c matches, groups and emits them, detect.c
 * makes the results. */

/* A key of the source that matches a rule. */
struct hit {
	uint64_t number;
	uint64_t member; /* the number in the joined slot; 0: the rule joins no slot */
	uint32_t key;    /* in map.keys */
	uint32_t group;
	uint32_t src; /* index of the matching pattern on the left side */
};

struct group {
	/* indexes of the rule and of the first hit; hits of a group are consecutive */
	uint32_t rule, hit, nhit;
};

/* A resulting key: the group that makes it, and a second group that would make the same key. */
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
		ids; /* keys of the source; resulting keys; identities of groups */
	struct hit *hit;
	struct group *group;
	uint32_t *group_of_id; /* by number in ids */
	struct made *made;     /* by number in out */
	bool *used;            /* by rule */
	size_t nhit, hit_cap, ngroup, group_cap, id_cap, made_cap;
	uint32_t *hit_of_key; /* once hits are sorted */
	uint32_t *file; /* number of each file at the sink, plus one; 0: not emitted yet */
	struct dcp_intern names; /* the names found in place of {from} */
	uint32_t name;           /* the name whose keys are mapped; DCP_INTERN_NONE: none */
	struct dcp_arena arena;
	struct dcp_buf text, made_text;
	struct dcp_err *err;
};

/* detect.c */
void dcp_rules_say(const struct map *m, enum dcp_rules_what what, const char *key,
		   unsigned line, const char *text);
/* The key without the parts that the rules erase. Returns @key itself, or a copy in @text. */
const char *dcp_rules_without_parts(const struct dcp_rules *r, const char *key,
				    struct dcp_buf *text);
/* The key in the form that patterns are matched with: parts erased, prefixes stripped. The result
 * is in @text. */
const char *dcp_rules_bare_key(const struct dcp_rules *r, const char *key,
			       struct dcp_buf *text);
const char *dcp_rules_key_of(const struct map *m, const struct hit *h);
/* Put the tensors of a group through its rule into @f. @first receives the group's first source if
 * that can be read. On failure, returns a negative errno, with the reason in @why. */
int dcp_rules_make(struct map *m, const struct group *g, struct flow *f,
		   struct dcp_tensor *first, struct dcp_err *why);
/* The number of members into which a group's rule unstacks a tensor; also known if a later
 * operation failed. */
uint64_t dcp_rules_members(const struct map *m, const struct group *g, const struct flow *f);
/* The key that pattern @dst makes for member @member of a group; @f may be NULL for member 0. Valid
 * until the next call. Returns as dcp_rules_expand(). */
int dcp_rules_key_made(struct map *m, const struct group *g, const struct flow *f, uint32_t dst,
		       uint64_t member, const char **out);

/* detect.c */

enum linear {
	LINEAR_NONE,    /* no weight can be linear */
	LINEAR_UNKNOWN, /* there are linear weights, but their order is not known */
	LINEAR_OUT_IN,  /* [outputs, inputs], as torch has them */
	LINEAR_IN_OUT,  /* as Paddle has them */
};

/*
 * work: a tensor while operations change its shape. It consists of bits: a bit is a box of the
 * tensor, which lies with strides in a stored item.
 *
 * Every function replaces the bits of @w by new ones, allocated in the arena of @w, because other
 * works may share the old bits. Returns 0, -ENOMEM, or -EINVAL or -E2BIG with the reason in the err
 * of @w: one line, without the key. After a failure @w must not be used any more.
 */

struct dcp_arena;
struct dcp_err;

/* [lo, lo + len) of the tensor; neighbours are stride elements apart in the stored item. */
struct bit_dim {
	uint64_t lo, len, stride;
};

struct bit {
	const struct dcp_piece *of; /* the stored item that the bit is a part of */
	uint32_t of_ndim;           /* dimensions of the item's box */
	uint64_t first;             /* first element, counted in elements of the item */
	uint64_t item_n;            /* elements of the item */
	struct bit_dim *dim;        /* ndim elements; no dimension is empty */
};

struct work {
	uint32_t ndim;
	uint32_t itemsize;
	enum dcp_dtype dtype, cast;
	const char *dtype_name;
	uint64_t shape[DCP_MAX_NDIM];
	struct bit *bit;
	size_t n;
	struct dcp_arena *arena; /* where new bits are allocated */
	struct dcp_err *err;
};

/* Begin with the tensor as it is stored. @t must outlive @out and everything made from it. */
int dcp_work_from(const struct dcp_tensor *t, struct dcp_arena *arena, struct work *out,
		  struct dcp_err *err);
/* Set dtype, shape and pieces of @out, and nothing else. */
int dcp_work_done(const struct work *w, struct dcp_arena *arena, struct dcp_tensor *out);

/* Make the old dimension order[i] the new dimension i. */
int dcp_work_permute(struct work *w, const uint32_t *order);
/* Give the elements, in row-major order, another shape of the same size. */
int dcp_work_reshape(struct work *w, uint32_t ndim, const uint64_t *shape);
/* Keep elements [lo, lo + n) of dimension @d; -EINVAL if it has fewer. */
int dcp_work_narrow(struct work *w, uint32_t d, uint64_t lo, uint64_t n);
/* Extend dimension @d with zeros at its end to @n elements, no fewer than it has. */
int dcp_work_pad(struct work *w, uint32_t d, uint64_t n);
/* Insert a dimension of one element before dimension @d. */
int dcp_work_insert(struct work *w, uint32_t d);
/* Split dimension @d in two: the shares in which it was stored, which must be equally long, and the
 * elements of each share. */
int dcp_work_shares(struct work *w, uint32_t d);
/* Join @k tensors along dimension @d into @out; -EINVAL if they differ in anything but the length
 * of @d. */
int dcp_work_concat(const struct work *w, size_t k, uint32_t d, struct work *out);

/* A work whose bits are being replaced one by one. */
struct making {
	struct work was;
	struct work *w;
	size_t cap;
};
