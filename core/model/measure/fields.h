/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fields: statistics of a tensor as programs read them: the same names and values in JSON, in
 * TSV and in a mount.
 */
#pragma once
#include "core/model/measure/stats.h"
#include "core/model/tensor.h"

struct dcp_jsonw;

enum dcp_field_kind {
	DCP_FIELD_COUNT,  /* count */
	DCP_FIELD_NUMBER, /* number; NaN: it has none */
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

/* What is known of the numbers of one tensor, or of several. */
struct dcp_stats_of {
	const struct dcp_stats *s;
	enum dcp_dtype dtype;
	bool several;   /* tensors: no element has a place */
	bool mixed;     /* several dtypes: integers of them do not compare */
	bool unwritten; /* it lies in a hole of its file */
	uint32_t ndim;  /* of one */
	const uint64_t *shape;
};

struct dcp_stats_fields {
	struct dcp_stats_field field[DCP_STATS_FIELDS];
	size_t n;
	char limit[2][32], place[2][1024]; /* texts of fields */
};

/* Fill @out, whose texts live in it; it must not be moved. */
void dcp_stats_fields(const struct dcp_stats_of *of, struct dcp_stats_fields *out);
/* Write them as members of a JSON object; numbers that there are none of are null. */
void dcp_stats_fields_json(const struct dcp_stats_fields *all, struct dcp_jsonw *w);

/* What is noticeable: "zero", "constant", "never written", ...; or "". */
const char *dcp_stats_note(const struct dcp_stats_of *of);
/* Least or (@most) greatest of integers of 64 bits; NULL: it is no such integer. */
const char *dcp_stats_exact(char buf[32], const struct dcp_stats_of *of, bool most);
