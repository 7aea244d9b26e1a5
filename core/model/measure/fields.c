/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/measure/stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/jsonw.h"

const char *dcp_stats_exact(char buf[32], const struct dcp_stats_of *of, bool most)
{
	int64_t key = most ? of->s->high : of->s->low;

	if (of->mixed || of->s->n == 0 ||
	    (of->dtype != DCP_DTYPE_I64 && of->dtype != DCP_DTYPE_U64))
		return NULL;
	if (of->dtype == DCP_DTYPE_I64)
		snprintf(buf, 32, "%" PRId64, key);
	else
		snprintf(buf, 32, "%" PRIu64, (uint64_t)key ^ (uint64_t)1 << 63);
	return buf;
}

/* Memory that was never written contains numbers that no training makes. */
static bool looks_random(const struct dcp_stats_of *of)
{
	return of->s->n >= 64 && of->s->huge > of->s->n / 16 &&
	       !dcp_stats_is_opaque(of->dtype) && of->dtype != DCP_DTYPE_I64 &&
	       of->dtype != DCP_DTYPE_U64;
}

const char *dcp_stats_note(const struct dcp_stats_of *of)
{
	if (of->unwritten)
		return "never written";
	if (looks_random(of))
		return "looks uninitialised";
	if (of->s->n && of->s->zeros == of->s->n)
		return "zero";
	if (!of->several && dcp_stats_is_constant(of->s))
		return "constant";
	return dcp_stats_is_opaque(of->dtype) ? "bytes" : "";
}

static void add_field(struct dcp_stats_fields *out, const char *name, struct dcp_stats_field f)
{
	f.name = name;
	out->field[out->n++] = f;
}

static void add_count(struct dcp_stats_fields *out, const char *name, uint64_t n)
{
	add_field(out, name, (struct dcp_stats_field){ .kind = DCP_FIELD_COUNT, .count = n });
}

static void add_number(struct dcp_stats_fields *out, const char *name, double v)
{
	add_field(out, name, (struct dcp_stats_field){ .kind = DCP_FIELD_NUMBER, .number = v });
}

static void add_limit(struct dcp_stats_fields *out, const struct dcp_stats_of *of, bool some,
		      bool most)
{
	const char *name = most ? "max" : "min";
	const char *exact = some ? dcp_stats_exact(out->limit[most], of, most) : NULL;

	if (exact)
		add_field(out, name,
			  (struct dcp_stats_field){ .kind = DCP_FIELD_DIGITS, .text = exact });
	else
		add_number(out, name, !some ? NAN : most ? of->s->max : of->s->min);
}

static void add_first(struct dcp_stats_fields *out, const char *name,
		      const struct dcp_stats_of *of, uint64_t first, size_t which)
{
	struct dcp_stats_field f = { .kind = DCP_FIELD_TEXT };

	if (!of->several && first != DCP_NO_INDEX)
		f.text = dcp_place_text(out->place[which], sizeof(out->place[which]), of->shape,
					of->ndim, first / dcp_stats_values(of->dtype));
	add_field(out, name, f);
}

void dcp_stats_fields(const struct dcp_stats_of *of, struct dcp_stats_fields *out)
{
	const struct dcp_stats *s = of->s;
	bool some = s->finite && !dcp_stats_is_opaque(of->dtype);

	out->n = 0;
	add_count(out, "n", s->n);
	add_limit(out, of, some, false);
	add_limit(out, of, some, true);
	add_number(out, "mean", some ? s->mean : NAN);
	add_number(out, "std", some ? dcp_stats_std(s) : NAN);
	add_number(out, "norm", some ? dcp_stats_norm(s) : NAN);
	add_count(out, "zeros", s->zeros);
	add_count(out, "denormals", s->subnormals);
	add_count(out, "nan", s->nans);
	add_count(out, "inf", s->infs);
	add_first(out, "first_nan", of, s->first_nan, 0);
	add_first(out, "first_inf", of, s->first_inf, 1);
	add_field(
		out, "note",
		(struct dcp_stats_field){ .kind = DCP_FIELD_TEXT, .text = dcp_stats_note(of) });
}

static void put_number(struct dcp_jsonw *w, const char *name, double v)
{
	if (isfinite(v))
		dcp_jsonw_put_f64(w, name, v);
	else
		dcp_jsonw_put_str_or_null(w, name, NULL);
}

void dcp_stats_fields_json(const struct dcp_stats_fields *all, struct dcp_jsonw *w)
{
	for (const struct dcp_stats_field *f = all->field; f < all->field + all->n; f++)
		switch (f->kind) {
		case DCP_FIELD_COUNT:
			dcp_jsonw_put_u64(w, f->name, f->count);
			break;
		case DCP_FIELD_NUMBER:
			put_number(w, f->name, f->number);
			break;
		case DCP_FIELD_DIGITS:
			dcp_jsonw_key(w, f->name);
			dcp_jsonw_raw(w, f->text, strlen(f->text));
			break;
		case DCP_FIELD_TEXT:
			dcp_jsonw_put_str_or_null(w, f->name, f->text);
		}
}
