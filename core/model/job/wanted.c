/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the elements of each kind that any rank needs. Nearly always these are all: the parts of
 * ranks are equal or disjoint, so sums decide. A tensor is needed in part only if an `only` leaves
 * out ranks of a dimension that is also cut; then runs of bytes are recorded.
 */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/model/geometry/strided.h"

/*
 * The union of all needs, in order of file and offset: a sweep over the items in that order. Items
 * may overlap (two tensors with one storage, a damaged source): extents are merged, so each byte is
 * in one extent.
 */

/* memory: accounts for the memory of a job; functions about pieces that all files share. */

int dcp_job_no_memory(const struct dcp_job *job, struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM,
			"the plan of the job needs more than its %zu MiB of memory",
			job->opts.memory >> 20);
}

static int count_memory(struct dcp_job *job, size_t n)
{
	if (n > job->opts.memory - job->used)
		return -ENOMEM;
	job->used += n;
	return 0;
}

int dcp_job_room(struct dcp_job *job, struct job_vec *v, size_t n, size_t size)
{
	size_t cap = v->cap;
	void *p;

	if (n <= cap - v->n)
		return 0;
	while (cap - v->n < n)
		cap += DCP_MAX(cap / 2, (size_t)64);
	if (count_memory(job, (cap - v->cap) * size) < 0)
		return -ENOMEM;
	p = realloc(v->p, cap * size);
	if (!p) {
		job->used -= (cap - v->cap) * size;
		return -ENOMEM;
	}
	v->p = p;
	v->cap = cap;
	return 0;
}

static void dcp_job_shrink(struct dcp_job *job, struct job_vec *v, size_t size)
{
	void *p = v->n ? realloc(v->p, v->n * size) : NULL;

	if (!p)
		return;
	job->used -= (v->cap - v->n) * size;
	v->p = p;
	v->cap = v->n;
}

void *dcp_job_array(struct dcp_job *job, size_t n, size_t size)
{
	void *p;

	if (n > SIZE_MAX / 2 / size || count_memory(job, n * size) < 0)
		return NULL;
	p = calloc(n ? n : 1, size);
	if (!p)
		job->used -= n * size;
	return p;
}

uint64_t dcp_job_file_size(const struct dcp_job *job, uint32_t file)
{
	const struct dcp_file_id *f = &job->opts.files[file];

	return f->unpacked ? f->unpacked : f->size;
}

bool dcp_job_is_opaque(const struct dcp_piece *p)
{
	return p->enc != DCP_ENC_PLAIN || dcp_filter_encodes(p->filter);
}

/* Items in order of file and offset. */

enum { DIGIT = 11, BUCKETS = 1 << DIGIT };

static uint32_t digit_of(const struct job_item *item, uint32_t pass, uint32_t off_passes)
{
	uint64_t v = pass < off_passes ? item->off >> (pass * DIGIT)
				       : item->file >> ((pass - off_passes) * DIGIT);

	return (uint32_t)(v % BUCKETS);
}

static uint32_t count_digits(uint64_t v)
{
	uint32_t n = 0;

	for (; v; v >>= DIGIT)
		n++;
	return n;
}

/* Among items that begin at the same byte the longest comes first, and among equally long items the
 * one with the largest elements, whatever their order was. */
static int compare_equals(const void *x, const void *y, void *ctx)
{
	const struct dcp_job *job = ctx;
	const struct job_item *a = JOB_AT(job->item, struct job_item, *(const uint32_t *)x);
	const struct job_item *b = JOB_AT(job->item, struct job_item, *(const uint32_t *)y);
	uint32_t p = dcp_job_kind_of(job, a)->t.itemsize;
	uint32_t q = dcp_job_kind_of(job, b)->t.itemsize;

	return DCP_CMP(b->n, a->n) ?: DCP_CMP(q, p);
}

static void order_equals(struct dcp_job *job)
{
	const struct job_item *items = job->item.p;
	size_t next;

	for (size_t i = 0; i < job->item.n; i = next) {
		const struct job_item *a = &items[job->order[i]];

		for (next = i + 1; next < job->item.n; next++) {
			const struct job_item *b = &items[job->order[next]];

			if (a->file != b->file || a->off != b->off)
				break;
		}
		if (next - i > 1)
			qsort_r(&job->order[i], next - i, sizeof(*job->order), compare_equals,
				job);
	}
}

/* Radix sort, the least digit first. */
static int dcp_job_sort(struct dcp_job *job)
{
	const struct job_item *items = job->item.p;
	size_t n = job->item.n;
	uint32_t *from = dcp_job_array(job, n, sizeof(*from)), *to, *swap;
	uint64_t most_off = 0, most_file = 0;
	uint32_t off_passes, passes;

	job->order = dcp_job_array(job, n, sizeof(*job->order));
	to = job->order;
	if (!from || !to) {
		free(from);
		return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		from[i] = (uint32_t)i;
		most_off |= items[i].off;
		most_file |= items[i].file;
	}
	off_passes = count_digits(most_off);
	passes = off_passes + count_digits(most_file);
	for (uint32_t pass = 0; pass < passes; pass++) {
		uint32_t count[BUCKETS + 1] = { 0 };

		for (size_t i = 0; i < n; i++)
			count[digit_of(&items[i], pass, off_passes) + 1]++;
		for (uint32_t b = 0; b < BUCKETS; b++)
			count[b + 1] += count[b];
		for (size_t i = 0; i < n; i++)
			to[count[digit_of(&items[from[i]], pass, off_passes)]++] = from[i];
		swap = from;
		from = to;
		to = swap;
	}
	job->order = from;
	job->used -= n * sizeof(*to);
	free(to);
	order_equals(job);
	return 0;
}

/* ---- the union ---- */

static int dcp_job_extent(struct dcp_job *job, struct job_vec *v, uint32_t file, uint64_t off,
			  uint64_t n)
{
	struct job_extent *last = v->n ? JOB_AT(*v, struct job_extent, v->n - 1) : NULL;

	if (n == 0)
		return 0;
	if (last && last->file == file && off >= last->off && off - last->off <= last->n) {
		last->n = DCP_MAX(last->n, off - last->off + n);
		return 0;
	}
	if (dcp_job_room(job, v, 1, sizeof(*last)) < 0)
		return -ENOMEM;
	*JOB_AT(*v, struct job_extent, v->n++) =
		(struct job_extent){ .off = off, .n = n, .file = file };
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct job_extent *x = a, *y = b;

	return DCP_CMP(x->file, y->file) ?: DCP_CMP(x->off, y->off);
}

/* Overlapping items give runs out of order: sort and merge again, then sum up. */
static void dcp_job_merge(struct dcp_job *job)
{
	struct job_extent *e = job->extent.p;
	size_t n = 0;

	for (size_t i = 1; i < job->extent.n; i++)
		if (by_place(&e[i - 1], &e[i]) > 0) {
			DCP_SORT(e, job->extent.n, by_place);
			break;
		}
	for (size_t i = 1; i < job->extent.n; i++) {
		if (e[i].file == e[n].file && e[i].off - e[n].off <= e[n].n)
			e[n].n = DCP_MAX(e[n].n, e[i].off - e[n].off + e[i].n);
		else
			e[++n] = e[i];
	}
	job->extent.n = job->extent.n ? n + 1 : 0;
	job->unique = 0;
	for (size_t i = 0; i < job->extent.n; i++)
		job->unique += e[i].n;
}

/* Is the item separate from @last, and is each run of its elements also a run of bytes? */
static bool is_plain(const struct job_item *last, const struct job_item *item,
		     const struct job_kind *k)
{
	const struct dcp_piece *p = &k->t.pieces[item->pattern - k->first];
	bool meets = last && last->file == item->file && last->off + last->n > item->off;

	return !meets && !p->stride && !p->swap && !k->casts && !k->mixed;
}

static int find_union(struct dcp_job *job)
{
	const struct job_item *items = job->item.p, *last = NULL;
	int rc = 0;

	job->plain = true;
	job->converts = job->casts;
	for (size_t i = 0; i < job->item.n && rc == 0; i++) {
		const struct job_item *item = &items[job->order[i]];
		const struct job_kind *k = dcp_job_kind_of(job, item);
		const struct job_runs *runs =
			k->runs ? &k->runs[item->pattern - k->first] : NULL;

		if (!item->n || k->wanted == JOB_NOTHING)
			continue;
		job->converts |= k->t.pieces[item->pattern - k->first].swap;
		job->plain &= is_plain(last, item, k);
		if (!last || last->file != item->file ||
		    last->off + last->n < item->off + item->n)
			last = item;
		if (!runs)
			rc = dcp_job_extent(job, &job->extent, item->file, item->off, item->n);
		for (size_t r = 0; runs && rc == 0 && r < runs->n; r++)
			rc = dcp_job_extent(job, &job->extent, item->file,
					    item->off + runs->v[r].off, runs->v[r].n);
	}
	if (rc < 0)
		return rc;
	dcp_job_merge(job);
	dcp_job_shrink(job, &job->extent, sizeof(struct job_extent));
	return 0;
}

int dcp_job_find_union(struct dcp_job *job, struct dcp_err *err)
{
	int rc = dcp_job_sort(job);

	if (rc == 0)
		rc = find_union(job);
	return rc < 0 ? dcp_job_no_memory(job, err) : 0;
}

/* Teams. A spread says which ranks hold which elements of the tensors of a kind. Which ranks hold
 * the same part, and in how many groups, is the same for all kinds of one rule. */

void dcp_job_teams_init(struct job_teams *x, const struct dcp_job *job,
			const struct dcp_layout *layout)
{
	*x = (struct job_teams){ .job = job, .layout = layout };
	dcp_arena_init(&x->arena, job->opts.memory);
}

void dcp_job_teams_finish(struct job_teams *x)
{
	dcp_arena_finish(&x->arena);
}

struct dcp_spread_box dcp_job_whole(const struct job_kind *k)
{
	static const uint64_t zero[DCP_MAX_NDIM];

	return (struct dcp_spread_box){ zero, k->t.shape };
}

/* Find the ranks that have the key, and the first of each group. */
static void find_groups(const struct dcp_job *job, struct job_team *t)
{
	uint32_t part = JOB_NONE;

	t->same = true;
	for (uint32_t r = 0; r < job->ranks; r++) {
		uint32_t first = dcp_spread_first(t->spread, r), last = JOB_NONE;

		if (first == JOB_NONE)
			continue;
		t->rank[r] |= JOB_HAS;
		t->same &= part == JOB_NONE || part == first;
		part = first;
		for (uint32_t i = 0; r == first && i < t->ncopies; i++) {
			uint32_t group = (r + t->copy[i]) / job->opts.group;

			if (group != last)
				t->rank[r + t->copy[i]] |= JOB_LEAD;
			last = group;
		}
	}
}

static int make_team(struct job_teams *x, const struct dcp_layout_rule *rule, uint32_t ndim,
		     struct job_team **out)
{
	struct job_team *t = dcp_arena_calloc(&x->arena, 1, sizeof(*t));
	int rc;

	if (!t)
		return -ENOMEM;
	t->rule = *rule;
	t->ndim = ndim;
	t->rank = dcp_arena_calloc(&x->arena, x->job->ranks, sizeof(*t->rank));
	if (!t->rank)
		return -ENOMEM;
	rc = dcp_spread_make(x->layout, rule, ndim, &x->arena, &t->spread);
	if (rc < 0)
		return rc;
	t->copy = dcp_spread_copies(t->spread, &t->ncopies);
	find_groups(x->job, t);
	*out = t;
	return 0;
}

/* Can @t be kept for the next kind? */
static bool dcp_job_is_team(const struct job_team *t, const struct job_kind *k,
			    const struct dcp_layout_rule *rule)
{
	return t->ndim == k->t.ndim && t->rule.number == rule->number &&
	       !memcmp(t->rule.stage, rule->stage, sizeof(rule->stage));
}

int dcp_job_team(struct job_teams *x, const struct job_kind *k,
		 const struct dcp_layout_rule *rule, const struct job_team **out,
		 struct dcp_err *err)
{
	uint64_t hash = dcp_hash64_more(rule->number, rule->stage, sizeof(rule->stage));
	struct job_team **slot = &x->slot[(hash + k->t.ndim) % JOB_TEAMS];
	int rc = 0;

	if (!*slot || !dcp_job_is_team(*slot, k, rule)) {
		if (x->arena.used > x->arena.limit / 8) {
			memset(x->slot, 0, sizeof(x->slot));
			dcp_arena_reset(&x->arena);
		}
		*slot = NULL;
		rc = make_team(x, rule, k->t.ndim, slot);
	}
	if (rc == 0)
		rc = dcp_spread_set((*slot)->spread, k->t.key, k->t.shape, err);
	*out = *slot;
	return rc == -ENOMEM ? dcp_job_no_memory(x->job, err) : rc;
}

/* ---- parts ---- */

struct noting {
	struct dcp_job *job;
	struct job_kind *k;
	struct job_vec *runs; /* by pattern: struct job_run */
};

static int note_run(struct noting *x, uint32_t p, uint64_t off, uint64_t n)
{
	struct job_vec *v = &x->runs[p];
	struct job_run *last = v->n ? JOB_AT(*v, struct job_run, v->n - 1) : NULL;

	if (last && last->off + last->n == off) {
		last->n += n;
		return 0;
	}
	if (dcp_job_room(x->job, v, 1, sizeof(*last)) < 0)
		return -ENOMEM;
	*JOB_AT(*v, struct job_run, v->n++) = (struct job_run){ off, n };
	return 0;
}

static int note_strided(void *ctx, const struct dcp_strided *s)
{
	uint64_t i[DCP_STRIDED_DIMS] = { 0 }, off = s->off;
	struct noting *x = ctx;
	uint32_t d;

	if (dcp_job_is_zeros(s->piece))
		return 0;
	if (dcp_job_is_opaque(s->piece)) /* all of it or nothing */
		return note_run(x, s->piece->file, 0, 0);
	for (;;) {
		int rc = note_run(x, s->piece->file, off, s->run);

		if (rc < 0)
			return rc;
		for (d = s->ndim; d-- > 0;) {
			off += s->file_stride[d];
			if (++i[d] < s->count[d])
				break;
			off -= s->count[d] * s->file_stride[d];
			i[d] = 0;
		}
		if (d == UINT32_MAX)
			return 0;
	}
}

/* Sort the runs, and merge runs that touch. */
static void merge_runs(struct job_runs *r)
{
	size_t n = 0;

	DCP_SORT(r->v, r->n, dcp_by_u64);
	for (size_t i = 1; i < r->n; i++) {
		struct job_run *last = &r->v[n];
		uint64_t end = r->v[i].off + r->v[i].n;

		if (r->v[i].off > last->off + last->n)
			r->v[++n] = r->v[i];
		else
			last->n = DCP_MAX(last->n, end - last->off);
	}
	r->n = r->n ? n + 1 : 0;
}

/* Parts with elements, each represented by one rank. */
struct parts {
	uint32_t *rank;
	uint32_t n;
	uint64_t held;
};

static void add_parts(void *ctx, const struct dcp_spread_hit *hit)
{
	uint32_t n = dcp_spread_parts(hit);
	struct parts *parts = ctx;

	for (uint32_t i = 0; i < n; i++)
		parts->rank[parts->n++] = dcp_spread_part(hit, i);
	parts->held += hit->n * n;
}

/* Record the runs that any of the parts has. */
static int note_parts(struct noting *x, const struct parts *parts, struct dcp_err *err)
{
	const struct job_kind *k = x->k;
	struct dcp_arena arena, of_cut;
	struct dcp_tiling tl;
	int rc;

	dcp_arena_init(&arena, x->job->opts.memory);
	dcp_arena_init(&of_cut, x->job->opts.memory);
	rc = dcp_tiling_init(&tl, &k->t, &arena, err);
	for (uint32_t i = 0; rc == 0 && i < parts->n; i++) {
		struct dcp_cut cut;

		dcp_arena_reset(&of_cut);
		rc = dcp_layout_cut_by_rule(x->job->opts.to, &k->to, parts->rank[i], k->t.ndim,
					    k->t.shape, &of_cut, &cut, err);
		if (rc == 1)
			rc = dcp_strided_emit(&tl, &cut, note_strided, x);
	}
	dcp_arena_finish(&of_cut);
	dcp_arena_finish(&arena);
	return rc;
}

static int note_kind(struct dcp_job *job, struct job_kind *k, const struct parts *parts,
		     struct dcp_err *err)
{
	struct noting x = { job, k, calloc(k->t.npieces, sizeof(*x.runs)) };
	int rc = -ENOMEM;

	k->runs = calloc(k->t.npieces, sizeof(*k->runs));
	if (x.runs && k->runs)
		rc = note_parts(&x, parts, err);
	for (size_t p = 0; x.runs && k->runs && p < k->t.npieces; p++) {
		k->runs[p] = (struct job_runs){ x.runs[p].p, x.runs[p].n };
		merge_runs(&k->runs[p]);
	}
	free(x.runs);
	return rc == -ENOMEM ? dcp_job_no_memory(job, err) : rc;
}

/* Find the wanted elements of a kind. @parts: memory for all parts. */
static int find_one(struct dcp_job *job, struct job_kind *k, const struct job_team *team,
		    struct parts *parts, struct dcp_err *err)
{
	struct dcp_spread_box whole = dcp_job_whole(k);
	uint64_t volume = 0;

	dcp_shape_volume(k->t.shape, k->t.ndim, &volume);
	k->wanted = JOB_NOTHING;
	job->casts |= k->casts && team->ncopies;
	if (!volume || !team->ncopies)
		return 0;
	k->wanted = JOB_ALL;
	if (dcp_spread_is_complete(team->spread))
		return 0;
	parts->n = 0;
	parts->held = 0;
	dcp_spread_meet(team->spread, &whole, add_parts, parts);
	if (parts->held >= volume)
		return 0;
	k->wanted = parts->held ? JOB_SOME : JOB_NOTHING;
	return parts->held ? note_kind(job, k, parts, err) : 0;
}

int dcp_job_find_wanted(struct dcp_job *job, struct dcp_err *err)
{
	const struct dcp_job_opts *opts = &job->opts;
	struct parts parts = { .rank = calloc(job->ranks, sizeof(*parts.rank)) };
	struct job_teams to, from;
	int rc = parts.rank ? 0 : dcp_job_no_memory(job, err);

	dcp_job_teams_init(&to, job, opts->to);
	dcp_job_teams_init(&from, job, opts->from);
	for (size_t i = 0; rc == 0 && i < job->kind.n; i++) {
		struct job_kind *k = JOB_AT(job->kind, struct job_kind, i);
		const struct job_team *team;

		if (opts->from)
			rc = dcp_job_team(&from, k, &k->from, &team, err);
		if (rc == 0)
			rc = dcp_job_team(&to, k, &k->to, &team, err);
		if (rc == 0 && !opts->from)
			rc = find_one(job, k, team, &parts, err);
	}
	dcp_job_teams_finish(&from);
	dcp_job_teams_finish(&to);
	free(parts.rank);
	return rc;
}

/* ---- copies ---- */

/* The places of an item, in order of file and offset. */
struct choice {
	const struct job_copy *v;
	size_t n;
};

static int compare_places(const struct job_copy *a, const struct job_copy *b)
{
	return DCP_CMP(a->file, b->file) ?: DCP_CMP(a->off, b->off) ?: DCP_CMP(a->n, b->n);
}

static int by_item(const void *x, const void *y)
{
	const struct job_copy *a = x, *b = y;

	return DCP_CMP(a->item, b->item) ?: compare_places(a, b);
}

/* Large items first; then by place, so that the order of adding does not matter. */
static int compare_choices(const void *x, const void *y)
{
	const struct choice *a = x, *b = y;
	int c = DCP_CMP(b->v->n, a->v->n);

	for (size_t i = 0; c == 0 && i < a->n && i < b->n; i++)
		c = compare_places(&a->v[i], &b->v[i]);
	return c ?: DCP_CMP(a->n, b->n);
}

static bool is_wanted(const struct dcp_job *job, const struct job_item *item)
{
	const struct job_kind *k = dcp_job_kind_of(job, item);

	return k->wanted == JOB_ALL ||
	       (k->wanted == JOB_SOME && k->runs[item->pattern - k->first].n);
}

static void choose_copies(struct dcp_job *job, const struct choice *v, size_t n, uint64_t *load)
{
	const struct job_copy *best = NULL;

	for (size_t i = 0; i < n; i++) {
		struct job_item *item = JOB_AT(job->item, struct job_item, v[i].v->item);

		if (i == 0 || compare_choices(&v[i - 1], &v[i]) != 0) {
			best = v[i].v;
			for (size_t c = 1; c < v[i].n; c++)
				if (load[v[i].v[c].file] < load[best->file])
					best = &v[i].v[c];
			load[best->file] += is_wanted(job, item) ? best->n : 0;
		}
		item->file = best->file;
		item->off = best->off;
		item->n = best->n;
	}
}

int dcp_job_choose(struct dcp_job *job)
{
	struct job_copy *copy = job->copy.p;
	struct choice *v;
	uint64_t *load;
	size_t n = 0;

	if (!job->copy.n)
		return 0;
	v = dcp_job_array(job, job->copy.n, sizeof(*v));
	load = dcp_job_array(job, job->opts.nfiles, sizeof(*load));
	if (!v || !load) {
		free(v);
		free(load);
		return -ENOMEM;
	}
	DCP_SORT(copy, job->copy.n, by_item);
	for (size_t i = 0; i < job->copy.n; i++) {
		if (i && copy[i].item == copy[i - 1].item)
			v[n - 1].n++;
		else
			v[n++] = (struct choice){ &copy[i], 1 };
	}
	for (size_t i = 0, next = 0; i < job->item.n; i++) {
		const struct job_item *item = JOB_AT(job->item, struct job_item, i);

		if (next < n && v[next].v->item == i)
			next++;
		else if (is_wanted(job, item))
			load[item->file] += item->n;
	}
	DCP_SORT(v, n, compare_choices);
	choose_copies(job, v, n, load);
	job->used -= job->copy.n * sizeof(*v) + job->opts.nfiles * sizeof(*load);
	free(v);
	free(load);
	return 0;
}
