/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats: statistics of the numbers of a tensor, in one pass over its elements.
 *
 * Minimum, maximum, mean and deviation are computed from the finite numbers; the other numbers are
 * only counted. Both parts of a complex number count as numbers, and both values of a byte of F4.
 * Sums are made in double precision, block by block, and blocks are joined so that neither a mean
 * far from zero nor many numbers cost precision. Elements of an unknown type (OTHER, F6) are
 * measured as bytes, see dcp_stats_is_opaque().
 *
 * Parts of a tensor may be measured by several threads, and are then joined in order. Nothing in
 * this file allocates.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/model/tensor.h"

#define DCP_NO_INDEX UINT64_MAX
/* Bins of the histogram: powers of two from 2^-160 to 2^159; magnitudes beyond are in the first and
 * the last bin. */
#define DCP_STATS_BINS 320
#define DCP_STATS_BIN_LEAST (-160)

struct dcp_stats_bins {
	uint64_t n[2][DCP_STATS_BINS]; /* positive, negative */
};

struct dcp_stats {
	uint64_t n, finite; /* numbers */
	uint64_t zeros, subnormals, nans, infs;
	uint64_t huge; /* finite numbers of 2^64 or more, which no weight has */
	/* position of the first NaN or infinity, in row-major order; or DCP_NO_INDEX */
	uint64_t first_nan, first_inf;
	double min, max, mean; /* of finite numbers; 0 if there are none */
	double m2;             /* sum of the squared distances from the mean */
	int64_t low,
		high; /* least and greatest number, NaN included, as integers in the order of the
		       * type */
};

void dcp_stats_init(struct dcp_stats *s);

/* Add @n elements of type @t at @p, which is aligned to the type; @first is the position of the
 * first among the numbers of the tensor. @bins NULL: no histogram. */
void dcp_stats_add(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		   uint64_t first, const void *p, size_t n);

/* Merge the statistics of later numbers into @s. */
void dcp_stats_join(struct dcp_stats *s, const struct dcp_stats *later);

/* The sum of the squares of the first @n numbers at @p. False: some numbers are not finite, or the
 * type has one byte. */
bool dcp_stats_squares(enum dcp_dtype t, const void *p, size_t n, double *out);

/* Numbers in an element: 2 for complex types and F4. */
unsigned dcp_stats_values(enum dcp_dtype t);
/* Are elements of the type measured as bytes, because their numbers are not known? */
bool dcp_stats_is_opaque(enum dcp_dtype t);
/* Do all elements have the same bits? */
static inline bool dcp_stats_is_constant(const struct dcp_stats *s)
{
	return s->n && s->low == s->high;
}

double dcp_stats_std(const struct dcp_stats *s);
double dcp_stats_norm(const struct dcp_stats *s); /* square root of the sum of squares */

/* Number @i of the numbers of type @t at @p, as a double. */
double dcp_stats_number(enum dcp_dtype t, const void *p, size_t i);
/* The first @n numbers at @p as doubles; 64-bit integers are rounded. */
void dcp_stats_widen(enum dcp_dtype t, double *out, const void *p, size_t n);

/* fields: statistics of a tensor for programs, with the same names and values in JSON, in TSV and
 * in a mount. */

struct dcp_jsonw;

enum dcp_field_kind {
	DCP_FIELD_COUNT,  /* count */
	DCP_FIELD_NUMBER, /* @number; NaN: there is none */
	DCP_FIELD_DIGITS, /* text: an integer that doubles do not hold */
	DCP_FIELD_TEXT,   /* text, or NULL */
};

struct dcp_stats_field {
	const char *name;
	enum dcp_field_kind kind;
	uint64_t count;
	double number;
	const char *text;
};

#define DCP_STATS_FIELDS 13
#define DCP_STATS_FIELD_NAMES                                                                  \
	"n min max mean std norm zeros denormals nan inf first_nan first_inf note"

/* The statistics of one tensor, or of several. */
struct dcp_stats_of {
	const struct dcp_stats *s;
	enum dcp_dtype dtype;
	bool several;   /* several tensors, so elements have no coordinates */
	bool mixed;     /* several dtypes, whose integers cannot be compared */
	bool unwritten; /* the tensor is in a hole of its file */
	uint32_t ndim;  /* of one */
	const uint64_t *shape;
};

struct dcp_stats_fields {
	struct dcp_stats_field field[DCP_STATS_FIELDS];
	size_t n;
	char limit[2][32], place[2][1024]; /* texts of fields */
};

/* Fill @out. It must not be moved, because it contains its texts. */
void dcp_stats_fields(const struct dcp_stats_of *of, struct dcp_stats_fields *out);
/* Write the fields as members of a JSON object; missing numbers are null. */
void dcp_stats_fields_json(const struct dcp_stats_fields *all, struct dcp_jsonw *w);

/* A remark: "zero", "constant", "never written", ...; or "". */
const char *dcp_stats_note(const struct dcp_stats_of *of);
/* The smallest or (@most) largest integer as text, for 64-bit integers; NULL: another type. */
const char *dcp_stats_exact(char buf[32], const struct dcp_stats_of *of, bool most);

/*
 * differ: compares two arrays of one shape.
 *
 * Elements of one dtype are equal if their bits are, so a NaN equals itself. Elements of two dtypes
 * are compared as numbers, and any two NaNs are equal. Distances are between finite numbers. Both
 * parts of a complex number count as numbers, and so do both values of a byte of F4; an unknown
 * type is compared by bits alone.
 *
 * Parts may be compared by several threads, and are then joined in order. Nothing in this file
 * allocates.
 */

/* ulps[0] counts equal pairs; ulps[k] counts pairs that are at least 2^(k-1) and less than 2^k
 * values of the type apart. */
#define DCP_DIFFER_ULPS 65

struct dcp_difference {
	uint64_t n;       /* elements */
	uint64_t changed; /* elements that differ */
	uint64_t first;   /* position of the first changed element, or DCP_NO_INDEX */
	uint64_t far;     /* numbers further apart than atol + rtol * |b| */
	uint64_t nans;    /* changed numbers that are NaN or infinite on at least one side */
	uint64_t pairs;   /* pairs of finite numbers */
	double max_abs, sum_abs, max_rel,
		sum_rel;       /* relative to the larger of both magnitudes */
	double aa, bb, ab, dd; /* sums of a * a, b * b, a * b and (a - b)^2 */
	uint64_t ulps[DCP_DIFFER_ULPS];
};

struct dcp_tolerance {
	double rtol, atol;
};

void dcp_difference_init(struct dcp_difference *d);

/* Can elements of these two different types be compared as numbers? */
bool dcp_can_differ(enum dcp_dtype a, enum dcp_dtype b);

/*
 * Add @n elements of type @ta at @a and @tb at @b, aligned to their types. Elements have @itemsize
 * bytes if the types are equal; otherwise dcp_can_differ() must be true. @first is the number of
 * the first element.
 */
void dcp_difference_add(struct dcp_difference *d, const struct dcp_tolerance *tolerance,
			enum dcp_dtype ta, const void *a, enum dcp_dtype tb, const void *b,
			uint32_t itemsize, uint64_t first, size_t n);

/* Merge the differences of later elements into @d. */
void dcp_difference_join(struct dcp_difference *d, const struct dcp_difference *later);

/* |a - b| / |a|, and a * b / |a| |b|, over all elements; NaN if a divisor is 0. */
double dcp_difference_relative(const struct dcp_difference *d);
double dcp_difference_cosine(const struct dcp_difference *d);
