/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the cut of one rank from a rule: applies the placements in order, each to what the
 * earlier placements left. Nothing is computed per element; a tensor cut by chunks costs two small
 * allocations in the caller's arena and one more a placement.
 */
#include "core/model/layout/rule.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/model/tensor.h"

/* The arguments of a cut: rule, rank, tensor. */
struct job {
	const struct dcp_layout *l;
	const struct rule *rule;
	const struct dcp_layout_rule *match;
	uint32_t rank, at[DCP_LAYOUT_MAX_DIMS];
	uint32_t ndim;
	struct dcp_axis *axis;
	struct dcp_cut *out;
	struct dcp_arena *arena;
	struct dcp_err *err;
};

/* "llama.layout:3: key w, rank 5: shard(1)@tp: ..." */
static int refuse_cut(const struct job *job, const struct place *p, int code, const char *fmt,
		      ...) DCP_PRINTF(4, 5);

static int refuse_cut(const struct job *job, const struct place *p, int code, const char *fmt,
		      ...)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	char line[16] = "", why[160];
	va_list ap;

	if (!job->err)
		return code;
	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (p)
		dcp_layout_print_place(job->l, p, &text);
	if (job->rule->line)
		snprintf(line, sizeof(line), ":%u", job->rule->line);
	return dcp_fail(job->err, code, "%.80s%s: key %.160s, rank %" PRIu32 ": %.60s%s%s",
			job->l->name, line, job->match->key, job->rank, text.p ? text.p : "",
			p ? ": " : "", why);
}

bool dcp_layout_range_has(const struct dcp_layout *l, const struct place_range *r, uint32_t at)
{
	int64_t size = l->mesh.size[r->mesh_dim];
	int64_t lo = r->lo < 0 ? r->lo + size : r->lo, hi = r->hi < 0 ? r->hi + size : r->hi;

	return at >= lo && at <= hi;
}

/* Ranges of one mesh dimension are alternatives: one of them must have the coordinate. */
static bool only_has(const struct dcp_layout *l, const struct place *p, const uint32_t *at)
{
	for (size_t i = 0; i < p->nrange;) {
		uint32_t dim = p->range[i].mesh_dim;
		bool hit = false;

		for (; i < p->nrange && p->range[i].mesh_dim == dim; i++)
			hit = hit || dcp_layout_range_has(l, &p->range[i], at[dim]);
		if (!hit)
			return false;
	}
	return true;
}

static int stage_has(const struct job *job, const struct place *p, uint64_t number)
{
	struct slice part;
	char why[128];
	int rc;

	if (number >= p->arg)
		return refuse_cut(job, p, -EINVAL,
				  "the key's number %ju is past the last stage's",
				  (uintmax_t)number);
	rc = dcp_layout_part(p->split, p, job->l->mesh.size[p->mesh_dim], job->at[p->mesh_dim],
			     p->arg, &part, why, sizeof(why));
	if (rc < 0)
		return refuse_cut(job, p, rc, "%s", why);
	return number >= part.lo && number - part.lo < part.n;
}

static const struct place *places_of(const struct job *job)
{
	return job->rule->nplace ? &job->l->place[job->rule->place] : NULL;
}

/* Does the rank have the key? 1 or 0. */
static int has_key(const struct job *job)
{
	const struct place *p = places_of(job);
	size_t nstage = 0;
	int rc = !job->rule->drop;

	for (uint32_t i = 0; rc == 1 && i < job->rule->nplace; i++) {
		if (p[i].kind == PLACE_ONLY)
			rc = only_has(job->l, &p[i], job->at);
		else if (p[i].kind == PLACE_STAGE)
			rc = stage_has(job, &p[i], job->match->stage[nstage++]);
	}
	return rc;
}

int dcp_layout_dim(const struct place *p, uint32_t ndim)
{
	int64_t dim = p->dim < 0 ? (int64_t)p->dim + ndim : p->dim;

	if (p->kind == PLACE_COLWISE)
		return (int)ndim - (ndim > 1 ? 2 : 1);
	if (p->kind == PLACE_ROWWISE)
		return ndim > 1 ? (int)ndim - 1 : LAYOUT_DIM_WHOLE;
	if (dim >= 0 && dim < ndim)
		return (int)dim;
	return p->optional ? LAYOUT_DIM_WHOLE : LAYOUT_DIM_NONE;
}

/*
 * FSDP2 wraps tensors that tensor parallelism has cut. So if a later mesh dimension has cut
 * already, this mesh dimension belongs to FSDP2. It sets the length of an empty array to 0 in the
 * dimension that it cuts. torch's other way, cutting by several mesh dimensions in their order,
 * keeps the length.
 */
static bool is_fsdp_of_nothing(const struct job *job, const struct place *p)
{
	bool wraps = false, empty = false;

	if (p->kind != PLACE_SHARD || p->split != SPLIT_CHUNK)
		return false;
	for (const struct place *q = places_of(job); q < p; q++)
		wraps = wraps || (q->kind < PLACE_ONLY && q->mesh_dim > p->mesh_dim);
	for (uint32_t d = 0; d < job->ndim; d++)
		empty = empty || job->axis[d].len == 0;
	return wraps && empty;
}

static int cut_axis(const struct job *job, const struct place *p)
{
	int dim = dcp_layout_dim(p, job->ndim);
	struct dcp_axis *axis;
	struct slices s;
	char why[128] = "";
	int rc;

	if (dim == LAYOUT_DIM_WHOLE)
		return 0;
	if (dim == LAYOUT_DIM_NONE)
		return refuse_cut(job, p, -EINVAL,
				  "the tensor has %" PRIu32
				  " dimension%s; write optional to replicate it",
				  job->ndim, dcp_s(job->ndim));
	axis = &job->axis[dim];
	if (is_fsdp_of_nothing(job, p)) {
		*axis = (struct dcp_axis){ 0 };
		return 0;
	}
	rc = dcp_layout_split(p, job->l->mesh.size[p->mesh_dim], job->at[p->mesh_dim],
			      axis->len, job->arena, &s, why, sizeof(why));
	if (rc == 0)
		rc = dcp_layout_axis_take(axis, &s, job->arena);
	if (rc == -ENOMEM)
		return rc;
	return rc < 0 ? refuse_cut(job, p, rc, "dimension %d: %s", dim,
				   why[0] ? why : "too many spans")
		      : 0;
}

/* Flatten the array, without cutting it yet. */
static int flatten_array(const struct job *job, const struct place *p)
{
	struct dcp_cut *cut = job->out;
	uint64_t n;

	if (cut->flat)
		return 0;
	if (!dcp_cut_volume(cut, &n))
		return refuse_cut(job, p, -E2BIG, "the array has more than 2^64 elements");
	cut->flat = true;
	cut->flat_n = n;
	return 0;
}

/* The elements that each part of @n elements holds, padding included. */
static int flat_part(const struct job *job, const struct place *p, uint64_t n, uint64_t *out)
{
	uint32_t parts = job->l->mesh.size[p->mesh_dim];
	uint64_t c = dcp_div_up(n, parts);

	if (p->split == SPLIT_EVEN && n % parts != 0)
		return refuse_cut(job, p, -EINVAL, "%ju elements are not a multiple of %u",
				  (uintmax_t)n, parts);
	if (p->arg > 1 && dcp_ckd_mul(&c, dcp_div_up(c, p->arg), p->arg))
		return refuse_cut(job, p, -E2BIG, "more than 2^64 elements with padding");
	*out = c;
	return 0;
}

static int cut_flat(const struct job *job, const struct place *p)
{
	struct dcp_cut *cut = job->out;
	uint64_t n, c = 0, lo, filled;
	int rc;

	if (p->optional && job->ndim == 0)
		return 0;
	rc = flatten_array(job, p);
	if (rc < 0)
		return rc;
	n = cut->flat_n + cut->pad; /* fits: a part was no longer than this */
	rc = flat_part(job, p, n, &c);
	if (rc < 0)
		return rc;
	if (dcp_ckd_mul(&lo, c, job->at[p->mesh_dim]) || lo > n)
		lo = n;
	if (p->split == SPLIT_TIGHT)
		c = DCP_MIN(c, n - lo);
	filled = lo < cut->flat_n ? DCP_MIN(c, cut->flat_n - lo) : 0;
	cut->flat_lo += DCP_MIN(lo, cut->flat_n);
	cut->flat_n = filled;
	cut->pad = c - filled;
	return 0;
}

static int cut_all(const struct job *job)
{
	const struct place *p = places_of(job);
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < job->rule->nplace; i++) {
		if (p[i].kind == PLACE_ONLY || p[i].kind == PLACE_STAGE)
			continue;
		rc = p[i].kind == PLACE_FLAT ? cut_flat(job, &p[i]) : cut_axis(job, &p[i]);
	}
	return rc;
}

static size_t spans_of(const struct job *job)
{
	size_t n = 0;

	for (uint32_t d = 0; d < job->ndim; d++)
		n += job->axis[d].n;
	return n;
}

/* Begin with the whole tensor: axes and their spans in one block. */
static int make_axes(struct job *job, const uint64_t *shape)
{
	size_t axes = job->ndim * sizeof(struct dcp_axis);
	char *mem = dcp_arena_alloc(job->arena, axes + job->ndim * sizeof(struct dcp_span));
	struct dcp_span *span;

	if (!mem)
		return -ENOMEM;
	span = (struct dcp_span *)(void *)(mem + axes);
	job->axis = (struct dcp_axis *)(void *)mem;
	for (uint32_t d = 0; d < job->ndim; d++) {
		span[d] = (struct dcp_span){ 0, 0, shape[d] };
		job->axis[d] = (struct dcp_axis){ &span[d], shape[d] != 0, shape[d] };
	}
	return 0;
}

static int fail_no_rule(const struct dcp_layout *l, const char *key, uint32_t rank,
			struct dcp_err *err)
{
	const struct glob *near = NULL;
	uint32_t r = err ? dcp_layout_glob_nearest(l, key, &near) : UINT32_MAX;

	if (r == UINT32_MAX)
		return dcp_fail(err, -EINVAL,
				"%.80s: key %.160s, rank %" PRIu32 ": there are no rules",
				l->name, key, rank);
	return dcp_fail(err, -EINVAL,
			"%.80s: key %.160s, rank %" PRIu32 ": no rule matches; the nearest is "
			"%.100s (line %u); a last rule \"* replicate\" takes the rest",
			l->name, key, rank, near->text, l->rule[r].line);
}

int dcp_layout_cut_by_rule(const struct dcp_layout *l, const struct dcp_layout_rule *rule,
			   uint32_t rank, uint32_t ndim, const uint64_t *shape,
			   struct dcp_arena *arena, struct dcp_cut *out, struct dcp_err *err)
{
	struct dcp_cut cut = { .ndim = ndim };
	struct job job = { .l = l,
			   .match = rule,
			   .rank = rank,
			   .ndim = ndim,
			   .out = &cut,
			   .arena = arena,
			   .err = err };
	int rc;

	if (rank >= l->nranks)
		return dcp_fail(err, -EINVAL,
				"%.80s: there is no rank %" PRIu32 ", only 0 to %" PRIu32,
				l->name, rank, l->nranks - 1);
	if (rule->number >= l->nrule)
		return fail_no_rule(l, rule->key, rank, err);
	job.rule = &l->rule[rule->number];
	if (ndim > DCP_MAX_NDIM)
		return refuse_cut(&job, NULL, -E2BIG, "%" PRIu32 " dimensions; the limit is %d",
				  ndim, DCP_MAX_NDIM);
	dcp_layout_coords(l, rank, job.at);
	rc = has_key(&job);
	if (rc != 1)
		return rc;
	rc = make_axes(&job, shape);
	if (rc < 0)
		return rc;
	cut.axis = job.axis;
	rc = cut_all(&job);
	if (rc < 0)
		return rc;
	if (spans_of(&job) > DCP_LAYOUT_MAX_SPANS)
		return refuse_cut(&job, NULL, -E2BIG, "%zu spans; the limit is %d",
				  spans_of(&job), DCP_LAYOUT_MAX_SPANS);
	*out = cut;
	return 1;
}

int dcp_layout_cut(const struct dcp_layout *l, uint32_t rank, const char *key, uint32_t ndim,
		   const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
		   struct dcp_err *err)
{
	struct dcp_layout_rule rule;

	dcp_layout_rule(l, key, &rule);
	return dcp_layout_cut_by_rule(l, &rule, rank, ndim, shape, arena, out, err);
}

/* The first number in the part of 0..p->arg that holds @number. */
static uint64_t first_of_stage(const struct place *p, uint32_t parts, uint64_t number)
{
	uint32_t lo = 0, hi = parts;
	struct slice part;
	char why[128];

	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (dcp_layout_part(p->split, p, parts, mid, p->arg, &part, why, sizeof(why)) <
		    0)
			return number;
		if (part.lo <= number)
			lo = mid;
		else
			hi = mid;
	}
	return dcp_layout_part(p->split, p, parts, lo, p->arg, &part, why, sizeof(why)) < 0
		       ? number
		       : part.lo;
}

void dcp_layout_rule_settle(const struct dcp_layout *l, struct dcp_layout_rule *rule)
{
	const struct rule *r = rule->number < l->nrule ? &l->rule[rule->number] : NULL;
	size_t nstage = 0;

	for (uint32_t i = 0; r && i < r->nplace; i++) {
		const struct place *p = &l->place[r->place + i];

		if (p->kind != PLACE_STAGE)
			continue;
		if (rule->stage[nstage] < p->arg)
			rule->stage[nstage] = first_of_stage(p, l->mesh.size[p->mesh_dim],
							     rule->stage[nstage]);
		nstage++;
	}
	while (nstage < LAYOUT_MAX_NUMBERS)
		rule->stage[nstage++] = 0;
}

bool dcp_layout_has_object(const struct dcp_layout *l, uint32_t rank, const char *key)
{
	struct dcp_layout_rule rule;
	struct job job = { .l = l, .match = &rule, .rank = rank };

	if (!dcp_layout_rule(l, key, &rule))
		return true;
	job.rule = &l->rule[rule.number];
	dcp_layout_coords(l, rank, job.at);
	return has_key(&job) != 0; /* on an error, show the object rather than lose it */
}

void dcp_deal(struct deal *out, const struct place *p, uint32_t parts, uint64_t n)
{
	struct deal d = { .p = p, .parts = parts, .n = n };

	if (p->grouped) {
		d.way = DEAL_GROUPS;
	} else if (p->kind == PLACE_STRIDED && parts > 1) {
		d.way = DEAL_STRIDED;
		d.each = dcp_div_up(n, p->arg);
		d.more = dcp_div_up(d.each, parts);
		d.edge = n ? d.each / d.more : 0;
	} else if (p->kind == PLACE_INTERLEAVE && parts > 1) {
		d.way = DEAL_INTERLEAVE;
		d.each = p->arg;
	} else if (p->split == SPLIT_BALANCED) {
		d.way = DEAL_BALANCED;
		d.each = n / parts;
		d.more = d.edge = n % parts;
	} else if (p->split == SPLIT_SIZES) {
		d.way = DEAL_SIZES;
	} else {
		d.way = DEAL_CHUNK;
		d.each = dcp_div_up(n, parts);
		d.edge = n ? n / d.each : 0;
	}
	*out = d;
}

/* ---- what can be dealt out ---- */

static bool split_fits(const struct place *p, uint32_t parts, uint64_t n)
{
	uint64_t before;

	if (p->split == SPLIT_EVEN)
		return n % parts == 0;
	if (p->split == SPLIT_LAST)
		return !dcp_ckd_mul(&before, dcp_div_up(n, parts), parts - 1) && before <= n;
	return true;
}

bool dcp_deal_fits(const struct place *p, uint32_t parts, uint64_t n)
{
	if (p->grouped) {
		if (n % p->sum != 0)
			return false;
		for (size_t i = 0; i < p->nnumber; i++)
			if (!split_fits(p, parts, p->number[i] * (n / p->sum)))
				return false;
		return true;
	}
	if (p->split == SPLIT_SIZES)
		return p->sum == n;
	return split_fits(p, parts, n);
}

bool dcp_deal_same(const struct place *p, uint32_t parts, uint64_t n, uint64_t *each)
{
	*each = dcp_div_up(n, parts);
	if (parts == 1 || n == 0)
		return p->split != SPLIT_SIZES;
	if (p->grouped || p->kind == PLACE_STRIDED || p->kind == PLACE_INTERLEAVE)
		return false;
	return p->split == SPLIT_PAD || (p->split != SPLIT_SIZES && n % parts == 0);
}

uint64_t dcp_deal_slices(const struct place *p, uint32_t parts, uint64_t n)
{
	if (p->grouped)
		return p->nnumber;
	if (p->kind == PLACE_STRIDED && parts > 1)
		return DCP_MIN(p->arg, n);
	if (p->kind == PLACE_INTERLEAVE && parts > 1)
		return dcp_div_up(dcp_div_up(n, p->arg), parts);
	return 1;
}

/* ---- one part ---- */

/* The beginning of part @i, if parts have @c elements and the last parts are clipped. */
static inline uint64_t find_edge(uint64_t c, uint64_t i, uint64_t n)
{
	uint64_t at;

	return dcp_ckd_mul(&at, c, i) || at > n ? n : at;
}

/* The number of elements of [lo, hi) before @x. */
static inline uint64_t count_before(uint64_t x, uint64_t lo, uint64_t hi)
{
	return DCP_MAX(DCP_MIN(x, hi), lo) - lo;
}

static uint64_t sized_below(const struct place *p, uint32_t i, uint64_t x)
{
	uint64_t lo = 0;

	for (uint32_t k = 0; k < i; k++)
		lo += p->number[k];
	return count_before(x, lo, lo + p->number[i]);
}

static uint64_t grouped_below(const struct deal *deal, uint32_t i, uint64_t x)
{
	const struct place *p = deal->p;
	uint64_t base = 0, below = 0;

	for (size_t k = 0; k < p->nnumber && base < x; k++) {
		uint64_t n = p->number[k] * (deal->n / p->sum);
		struct slice s = { 0, 0 };
		char why[1];

		dcp_layout_part(p->split, p, deal->parts, i, n, &s, why, sizeof(why));
		below += count_before(x - base, s.lo, s.lo + s.n);
		base += n;
	}
	return below;
}

void dcp_deal_mark(const struct deal *deal, uint64_t x, struct deal_mark *out)
{
	uint64_t c = deal->each, large = deal->more * (c + 1);

	out->x = x;
	switch (deal->way) {
	case DEAL_CHUNK:
		out->at = x / c;
		break;
	case DEAL_BALANCED:
		out->at = x < large ? x / (c + 1) : deal->more + (c ? (x - large) / c : 0);
		break;
	case DEAL_STRIDED:
		out->full = x / c;
		out->rest = x % c;
		out->part = dcp_div_up(DCP_MIN(c, deal->n - (x - out->rest)), deal->parts);
		out->at = out->rest ? out->rest / out->part : 0;
		break;
	case DEAL_INTERLEAVE:
		out->full = x / c / deal->parts;
		out->part = out->at = x / c % deal->parts;
		out->rest = x % c;
		break;
	case DEAL_SIZES:
	case DEAL_GROUPS:
		break;
	}
}

uint64_t dcp_deal_below(const struct deal *deal, uint32_t i, const struct deal_mark *mark)
{
	uint64_t c = deal->each, n = deal->n, lo, len;

	switch (deal->way) {
	case DEAL_CHUNK:
		return count_before(mark->x, find_edge(c, i, n),
				    find_edge(c, (uint64_t)i + 1, n));
	case DEAL_BALANCED:
		lo = c * i + DCP_MIN(i, deal->more);
		return count_before(mark->x, lo, lo + c + (i < deal->more));
	case DEAL_SIZES:
		return sized_below(deal->p, i, mark->x);
	case DEAL_GROUPS:
		return grouped_below(deal, i, mark->x);
	case DEAL_STRIDED: /* in all earlier pieces, and in the piece that holds it */
		lo = find_edge(deal->more, i, c);
		len = DCP_MIN(c, n - (mark->x - mark->rest));
		return mark->full * (find_edge(deal->more, (uint64_t)i + 1, c) - lo) +
		       count_before(mark->rest, find_edge(mark->part, i, len),
				    find_edge(mark->part, (uint64_t)i + 1, len));
	case DEAL_INTERLEAVE: /* full rounds, the block in this round, and the rest */
		return (mark->full + (i < mark->part)) * c + (i == mark->part ? mark->rest : 0);
	}
	return 0;
}

uint64_t dcp_deal_length(const struct deal *deal, uint32_t i, const struct deal_mark *end)
{
	if (deal->way == DEAL_CHUNK && deal->p->split == SPLIT_PAD)
		return deal->each;
	return dcp_deal_below(deal, i, end);
}

/* Parts from @i on are alike up to @edge; the part at @edge is different. */
static uint32_t up_to(uint64_t edge, uint32_t i, uint32_t end)
{
	uint64_t next = edge > i ? edge : (uint64_t)i + 1;

	return edge < i || next > end ? end : (uint32_t)next;
}

uint32_t dcp_deal_alike(const struct deal *deal, uint32_t i, const struct deal_mark *mark,
			size_t n)
{
	uint32_t end = up_to(deal->edge, i, deal->parts);

	if (deal->way == DEAL_SIZES || deal->way == DEAL_GROUPS)
		return i + 1;
	for (size_t k = 0; k < n; k++)
		end = up_to(mark[k].at, i, end);
	return end;
}
