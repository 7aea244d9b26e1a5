/* SPDX-License-Identifier: Apache-2.0 */
/* The wants of a rank, and errors in them. Data moves in execute.c. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/intern.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/hf/hf.h"
#include "core/model/layout/layout.h"
#include "tools/load/load.h"

enum { ALIGN = 256 }; /* of destinations that the library allocates */

int dcpload_plan_create(struct dcpload *ck, uint32_t flags, struct dcpload_plan **out,
			struct dcpload_error *err)
{
	struct dcpload_plan *p = calloc(1, sizeof(*p));

	if (!p)
		return load_fail(err, -ENOMEM, "out of memory");
	p->ck = ck;
	p->flags = flags;
	p->device = load_device_share(ck->device);
	pthread_mutex_init(&p->saying, NULL);
	dcp_arena_init(&p->arena, SIZE_MAX);
	*out = p;
	return 0;
}

void dcpload_plan_free(struct dcpload_plan *p)
{
	if (!p)
		return;
	load_stop(p);
	load_plan_drop_chunks(p);
	load_block_drop(p->memory);
	load_device_close(p->device);
	free(p->want);
	free(p->need);
	dcp_quantized_free(p->quantized);
	for (size_t i = 0; i < DCP_LEN(p->list); i++)
		free(p->list[i].v);
	free(p->event);
	dcp_arena_finish(&p->arena);
	pthread_mutex_destroy(&p->saying);
	free(p);
}

int dcpload_plan_hooks(struct dcpload_plan *p, const struct dcpload_hooks *hooks)
{
	p->hooks = (struct dcpload_hooks){ 0 };
	memcpy(&p->hooks, hooks, DCP_MIN((size_t)hooks->size, sizeof(p->hooks)));
	return 0;
}

int dcpload_plan_stream(struct dcpload_plan *p, void *stream)
{
	p->stream = stream;
	return 0;
}

/* ---- wants ---- */

/* A want cannot be met: list it in a partial plan, otherwise fail. */
static int refuse_want(struct dcpload_plan *p, uint32_t list, int code, const char *key,
		       const char *why, struct dcpload_error *err)
{
	if (!(p->flags & DCPLOAD_PARTIAL))
		return load_fail(err, code, "%s", why);
	return load_list(p, list, key, "%s", why) < 0 ? load_fail(err, -ENOMEM, "out of memory")
						      : 0;
}

static struct load_want *new_want(struct dcpload_plan *p)
{
	if (p->nwant >= UINT32_MAX || DCP_GROW(p->want, p->cap_want, p->nwant) < 0)
		return NULL;
	memset(&p->want[p->nwant], 0, sizeof(*p->want));
	return &p->want[p->nwant];
}

static const uint64_t *copy_numbers(struct dcp_arena *arena, const uint64_t *v, uint32_t n)
{
	uint64_t *copy = dcp_arena_calloc(arena, n + 1, sizeof(*copy));

	if (copy && n)
		memcpy(copy, v, n * sizeof(*v));
	return copy;
}

/* Elements of an unknown dtype may be larger than a target allows. They are never converted or
 * swapped, so their bytes become one more dimension. */
static int split_elements(struct dcpload_plan *p, struct load_want *w)
{
	struct load_target *t = &w->target;
	uint64_t *shape;

	if (t->dtype != DCP_DTYPE_OTHER || t->from <= sizeof(uint64_t))
		return 0;
	shape = dcp_arena_calloc(&p->arena, w->ndim + 1, sizeof(*shape));
	if (!shape)
		return -ENOMEM;
	memcpy(shape, w->shape, w->ndim * sizeof(*shape));
	shape[w->ndim] = t->from;
	t->shape = shape;
	t->ndim = w->ndim + 1;
	t->from = t->to = 1;
	return 0;
}

/* Refuse to convert the codes of quantized numbers without their scales. */
static int check_number(struct dcpload_plan *p, const struct dcp_row *row, struct dcp_err *err)
{
	const char *by;
	int rc = 0;

	if (!p->looked)
		rc = dcp_quantized_find(p->ck->of.v, p->ck->of.base, &p->quantized, err);
	p->looked = rc == 0;
	by = dcp_quantized_row(p->quantized, row);
	return by ? dcp_quantized_refuse(row, by, err) : rc;
}

/* Fill in @w from the stored tensor @row and w->cut. @to: dtype of the destination, NULL: as
 * stored. -EDOM: no such conversion. */
static int take_row(struct dcpload_plan *p, struct load_want *w, const struct dcp_row *row,
		    const char *to, struct dcp_err *err)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(row->dtype);
	struct load_target *t = &w->target;
	uint64_t shape[DCP_MAX_NDIM], n;
	struct dcpload_tensor tensor;

	load_tensor_of(row, &tensor);
	w->id = row->id;
	w->key = dcp_arena_strdup(&p->arena, row->key);
	if (!w->key)
		return dcp_err_say(err, -ENOMEM);
	t->dtype = t->shown = row->dtype;
	w->dtype_name = w->to_name = info->name;
	if (row->dtype == DCP_DTYPE_OTHER) {
		struct dcp_tensor full;
		int rc = dcp_index_tensor(dcp_version_index(p->ck->of.v), row->id, &p->arena,
					  &full, err);

		if (rc < 0)
			return rc;
		w->dtype_name = w->to_name = full.dtype_name;
		tensor.itemsize = full.itemsize;
	}
	if (to) {
		t->shown = dcp_dtype_from_name(to);
		if (t->shown == DCP_DTYPE_OTHER && strcmp(to, w->dtype_name) != 0)
			return dcp_fail(err, -EINVAL, "%s: no dtype is called \"%s\"", row->key,
					to);
		w->to_name =
			t->shown == t->dtype ? w->dtype_name : dcp_dtype_info(t->shown)->name;
	}
	if (t->shown != t->dtype && !dcp_dtype_can_cast(t->dtype, t->shown))
		return dcp_fail(err, -EDOM, "%s is stored as %s, which is not converted to %s",
				row->key, w->dtype_name, w->to_name);
	if (t->shown != t->dtype) {
		int rc = check_number(p, row, err);

		if (rc < 0)
			return rc;
	}
	w->global_ndim = row->ndim;
	w->global_shape = copy_numbers(&p->arena, row->shape, row->ndim);
	w->ndim = dcp_cut_shape(&w->cut, shape);
	w->shape = copy_numbers(&p->arena, shape, w->ndim);
	t->from = tensor.itemsize;
	t->to = t->shown == t->dtype ? t->from : dcp_dtype_info(t->shown)->size;
	w->itemsize = t->to;
	if (!w->shape || !w->global_shape)
		return dcp_err_say(err, -ENOMEM);
	if (!dcp_cut_volume(&w->cut, &n) || dcp_ckd_mul(&w->stored, n, t->from) ||
	    dcp_ckd_mul(&w->nbytes, n, t->to) || w->nbytes > INT64_MAX)
		return dcp_fail(err, -EOVERFLOW, "%s is too large", row->key);
	t->ndim = w->ndim;
	t->shape = w->shape;
	t->plain = t->shown == t->dtype;
	w->padded = dcp_cut_is_padded(&w->cut) || w->cut.pad;
	return dcp_err_say(err, split_elements(p, w));
}

/* Take the strides of the destination; row-major strides are dropped. */
static int take_stride(struct dcpload_plan *p, struct load_want *w, const int64_t *stride,
		       struct dcp_err *err)
{
	struct load_target *t = &w->target;
	uint64_t dense = 1, together = 1;
	bool all = true;
	int64_t *own = dcp_arena_calloc(&p->arena, w->ndim + 1, sizeof(*own));

	if (!own)
		return dcp_err_say(err, -ENOMEM);
	own[w->ndim] = 1; /* for the bytes of a split element */
	for (uint32_t d = 0; d < w->ndim; d++) {
		uint64_t by;

		if (stride[d] < 0)
			return dcp_fail(err, -EINVAL,
					"%s: the stride of dimension %u is negative", w->key,
					d);
		if (dcp_ckd_mul(&by, (uint64_t)stride[d], w->itemsize / t->to) ||
		    by > INT64_MAX)
			return dcp_err_say(err, -EOVERFLOW);
		own[d] = (int64_t)by;
	}
	for (uint32_t d = t->ndim; d-- > 0; dense *= t->shape[d]) {
		if (t->shape[d] == 1)
			continue;
		all &= (uint64_t)own[d] == dense;
		if (all)
			together *= t->shape[d];
	}
	if (all || w->nbytes == 0)
		return 0;
	t->stride = own;
	t->inner = together;
	t->plain = false;
	return 0;
}

static bool is_shape(const struct dcpload_want *want, const struct dcp_row *row)
{
	return !want->shape ||
	       (want->ndim == row->ndim &&
		!memcmp(want->shape, row->shape, row->ndim * sizeof(*row->shape)));
}

static int make_cut(struct load_want *w, const struct dcpload_want *want,
		    const struct dcp_row *row, struct dcp_arena *arena, struct dcp_err *err)
{
	int rc;

	if (want->ndim != row->ndim && (want->lo || want->stride))
		return dcp_fail(err, -EINVAL, "%s has %u dimensions, the region %u", row->key,
				row->ndim, want->ndim);
	if (!want->lo)
		return dcp_cut_whole(&w->cut, row->ndim, row->shape, arena);
	rc = dcp_cut_box(&w->cut, row->ndim, want->lo, want->len, arena);
	if (rc == 0 && !dcp_cut_fits(&w->cut, row->ndim, row->shape)) {
		char lo[160], len[160], shape[160];

		return dcp_fail(
			err, -EINVAL, "%s: %s elements from %s on end outside of its shape %s",
			row->key, dcp_dims_text(len, sizeof(len), want->len, want->ndim),
			dcp_dims_text(lo, sizeof(lo), want->lo, want->ndim),
			dcp_dims_text(shape, sizeof(shape), row->shape, row->ndim));
	}
	return rc;
}

/* Fill in @w. *list: where a failure is listed in a partial plan. */
static int add_want(struct dcpload_plan *p, struct load_want *w,
		    const struct dcpload_want *want, uint32_t *list, struct dcp_err *err)
{
	struct dcp_row row;
	int rc = load_find(p->ck, want->key, &p->arena, &row, err);

	*list = DCPLOAD_MISSING;
	if (rc < 0)
		return rc;
	*list = DCPLOAD_SHAPE;
	if (!is_shape(want, &row)) {
		char a[160], b[160];

		return dcp_fail(err, -EINVAL, "%s is stored with shape %s, wanted with %s",
				row.key, dcp_dims_text(a, sizeof(a), row.shape, row.ndim),
				dcp_dims_text(b, sizeof(b), want->shape, want->ndim));
	}
	rc = make_cut(w, want, &row, &p->arena, err);
	if (rc < 0)
		return rc;
	*list = DCPLOAD_DTYPE;
	rc = take_row(p, w, &row, want->dtype, err);
	if (rc == 0 && want->stride)
		rc = take_stride(p, w, want->stride, err);
	return rc;
}

int dcpload_want(struct dcpload_plan *p, const struct dcpload_want *in,
		 struct dcpload_error *err)
{
	struct dcpload_want want = { 0 };
	struct dcp_err own = { 0 };
	struct load_want *w = p->finished ? NULL : new_want(p);
	uint32_t list;
	int rc;

	memcpy(&want, in, DCP_MIN((size_t)in->size, sizeof(want)));
	if (!want.key || (want.lo && !want.len))
		return load_fail(err, -EINVAL, "a want has no %s", want.key ? "len" : "key");
	if (p->finished)
		return load_fail(err, -EINVAL, "%s: the plan is finished", want.key);
	if (!w)
		return load_fail(err, -ENOMEM, "out of memory");
	w->user = want.user;
	w->owned = !want.dst;
	w->target.base = want.dst;
	rc = add_want(p, w, &want, &list, &own);
	if (rc == 0) {
		p->nwant++;
		return 0;
	}
	if (rc == -ENOMEM || rc == -EIO)
		return load_fail_err(err, rc, &own);
	rc = refuse_want(p, list, rc, want.key, own.msg, err);
	if (rc == 0) { /* the want keeps its number, but nothing is loaded */
		*w = (struct load_want){ .user = want.user, .target.base = want.dst };
		w->key = dcp_arena_strdup(&p->arena, want.key);
		if (!w->key)
			return load_fail(err, -ENOMEM, "out of memory");
		w->dtype_name = w->to_name = "";
		p->nwant++;
	}
	return rc;
}

/* ---- a layout ---- */

struct adding {
	struct dcpload_plan *plan;
	const struct dcp_layout *layout; /* NULL for a file of regions */
	const struct load_region *region;
	struct dcp_intern lines; /* lines of that file that were added */
	uint32_t rank;
	const struct dcpload_select *select;
	struct dcp_err err;
};

static int add_held(struct adding *a, const struct dcp_row *row)
{
	struct dcpload_plan *p = a->plan;
	struct load_want *w = new_want(p);
	const char *to = a->select && dcp_dtype_is_float(row->dtype) ? a->select->dtype : NULL;
	int rc;

	if (!w)
		return -ENOMEM;
	w->owned = true;
	if (a->region) {
		w->user = dcp_arena_strdup(&p->arena, a->region->text);
		rc = w->user ? load_cut_region(a->region, row, &p->arena, &w->cut, &a->err)
			     : -ENOMEM;
	} else
		rc = dcp_layout_cut(a->layout, a->rank, row->key, row->ndim, row->shape,
				    &p->arena, &w->cut, &a->err);
	if (rc <= 0)
		return rc;
	rc = take_row(p, w, row, to, &a->err);
	if (rc == 0)
		p->nwant++;
	return rc;
}

static int add_row(struct adding *a, const struct dcp_row *row)
{
	struct dcpload_plan *p = a->plan;
	struct dcp_tensor t;
	int rc = load_selects(p->ck->of.v, a->select, row);

	if (rc <= 0)
		return rc;
	if (!row->broken || row->partly)
		return add_held(a, row);
	dcp_arena_reset(&p->ck->answer);
	rc = dcp_index_tensor(dcp_version_index(p->ck->of.v), row->id, &p->ck->answer, &t,
			      &a->err);
	if (rc < 0)
		return rc;
	if (!(p->flags & DCPLOAD_PARTIAL))
		return dcp_fail(&a->err, dcp_version_barred(p->ck->of.v) ? -EACCES : -EBADMSG,
				"%s: %s", row->key, t.error ? t.error : "it cannot be read");
	return load_list(p, DCPLOAD_BROKEN, row->key, "%s", t.error ? t.error : "");
}

static int add_region(void *ctx, const struct load_region *r)
{
	struct adding *a = ctx;
	struct dcpload_plan *p = a->plan;
	struct dcp_row row;
	const char *key;
	uint32_t number;
	int rc;

	if (r->rank != a->rank)
		return 0;
	rc = dcp_intern_add(&a->lines, r->text, strlen(r->text), DCP_INTERN_NONE, &number);
	if (rc <= 0) /* the user pointer of a part is the text of its line */
		return rc < 0 ? dcp_err_say(&a->err, rc)
			      : dcp_fail(&a->err, -EBADMSG, "rank %u has the line %.200s twice",
					 r->rank, r->text);
	a->region = r;
	key = dcp_arena_strndup(&p->arena, r->text, r->nkey);
	rc = key ? load_find(p->ck, key, &p->arena, &row, &a->err)
		 : dcp_err_say(&a->err, -ENOMEM);
	if (rc == -ENOENT && p->flags & DCPLOAD_PARTIAL)
		return load_list(p, DCPLOAD_MISSING, key, "%s", a->err.msg);
	return rc < 0 ? rc : add_row(a, &row);
}

static int add_layout(struct adding *a)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(a->plan->ck->of.v), DCP_ROW_TENSOR, 0, false,
				&scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = add_row(a, &row);
	return rc;
}

int dcpload_want_layout(struct dcpload_plan *p, const char *layout, uint32_t rank,
			const struct dcpload_select *select, struct dcpload_error *err)
{
	struct dcpload_select selected = { 0 };
	struct adding a = { .plan = p, .rank = rank, .select = select ? &selected : NULL };
	uint32_t ranks;
	int rc = load_layout(p->ck, layout, &a.layout, &ranks, &a.err);

	if (select)
		memcpy(&selected, select, DCP_MIN((size_t)select->size, sizeof(selected)));
	if (p->finished)
		return load_fail(err, -EINVAL, "%s: the plan is finished", layout);
	if (rc == 0 && rank >= ranks)
		rc = dcp_fail(&a.err, -EINVAL, "there is no rank %u of %s, only 0 to %u", rank,
			      layout, ranks - 1);
	if (rc == 0)
		rc = a.layout ? add_layout(&a)
			      : load_regions(layout, &ranks, add_region, &a, &a.err);
	dcp_intern_finish(&a.lines);
	return load_fail_err(err, rc, &a.err);
}

/* ---- finishing ---- */

/* Bytes of the destinations that the library allocates. */
static uint64_t owned_bytes(const struct dcpload_plan *p)
{
	uint64_t total = 0, n;

	for (size_t i = 0; i < p->nwant; i++)
		if (p->want[i].owned && p->want[i].id &&
		    (dcp_ckd_align(&n, p->want[i].nbytes, ALIGN) ||
		     dcp_ckd_add(&total, total, n)))
			return UINT64_MAX;
	return total;
}

/* A few kilobytes that claim to be a hundred gigabytes are a mistake, or meant to do harm. */
static int check_claim(const struct dcpload_plan *p, struct dcpload_error *err)
{
	enum { TIMES = 1000, LEAST = 64 << 20 };
	uint64_t files = 0, total = owned_bytes(p);
	size_t n;
	const struct dcp_file_id *file = dcp_index_files(dcp_version_index(p->ck->of.v), &n);

	for (size_t i = 0; i < n; i++)
		files += file[i].size;
	if (p->flags & DCPLOAD_ANY_SIZE || total <= LEAST || total / TIMES <= files)
		return 0;
	return load_fail(
		err, -E2BIG,
		"%s: its files have %llu bytes and claim to hold %llu bytes of tensors; "
		"--force (DCPLOAD_ANY_SIZE) loads them nevertheless",
		dcpload_version(p->ck), (unsigned long long)files, (unsigned long long)total);
}

/* Collective: check that the node has memory for the destinations of all its ranks, because Linux
 * overcommits and kills processes later. */
static int check_room(const struct dcpload_plan *p, struct dcpload_error *err)
{
	const struct dcpload *ck = p->ck;
	uint64_t mine = p->device ? 0 : owned_bytes(p), total = 0, room;
	char what[64];
	struct load_blobs b;
	int rc = load_gather_same(ck->comm, &mine, sizeof(mine), &b, err,
				  (int)ck->config.timeout_ms);

	if (rc < 0)
		return rc;
	for (uint32_t m = 0; m < ck->nlocal; m++)
		if (dcp_ckd_add(&total, total, *(const uint64_t *)b.at[ck->local[m]]))
			total = UINT64_MAX;
	load_blobs_free(&b);
	room = load_room(what, sizeof(what));
	rc = check_claim(p, err);
	if (rc == 0 && total > room)
		rc = load_fail(
			err, -ENOMEM,
			"the tensors of %u rank%s of this node take %llu bytes of memory, and "
			"%llu bytes can be had (%s)",
			ck->nlocal, dcp_s(ck->nlocal), (unsigned long long)total,
			(unsigned long long)room, what);
	return load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
}

static int allocate_memory(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_device *d = p->device;
	uint64_t total = owned_bytes(p);
	int rc;

	if (total == 0)
		return 0;
	rc = load_block_create(d, total, &p->memory);
	if (rc < 0)
		return load_fail(err, rc, "no memory for %llu bytes of tensors%s%s%s%s",
				 (unsigned long long)total, d ? " on " : "", d ? d->name : "",
				 d ? ": " : "", d ? d->said : "");
	total = 0;
	for (size_t i = 0; i < p->nwant; i++) {
		struct load_want *w = &p->want[i];

		if (!w->owned || !w->id)
			continue;
		w->target.base = (char *)p->memory->p + total;
		total += w->nbytes + ALIGN - 1 - (w->nbytes + ALIGN - 1) % ALIGN;
	}
	return 0;
}

void dcpload_plan_give_up(struct dcpload_plan *p, const struct dcpload_error *why)
{
	if (p->refused.code)
		return;
	p->refused = *why;
	p->refused.text[sizeof(why->text) - 1] = '\0';
	if (p->refused.code >= 0)
		p->refused.code = -EIO;
}

/* Collective. */
static int compare_flags(const struct dcpload_plan *p, struct dcpload_error *err)
{
	static const char *const names[] = { "DCPLOAD_STRICT", "DCPLOAD_PARTIAL",
					     "DCPLOAD_SAME_KEYS", "DCPLOAD_ANY_SIZE" };
	struct load_alike own[DCP_LEN(names)];

	for (size_t i = 0; i < DCP_LEN(names); i++)
		own[i] =
			(struct load_alike){ names[i], p->flags & 1u << i ? "set" : "not set" };
	return load_compare(p->ck->comm, own, DCP_LEN(own), err, (int)p->ck->config.timeout_ms);
}

int dcpload_plan_finish(struct dcpload_plan *p, struct dcpload_error *err)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	struct dcpload_error own;
	int rc = 0, timeout = (int)p->ck->config.timeout_ms;

	err = err ? err : &own;
	*err = (struct dcpload_error){ .rank = -1 };
	if (p->finished)
		rc = load_fail(err, -EINVAL, "the plan is finished already");
	if (rc == 0 && p->refused.code)
		rc = load_fail(err, p->refused.code, "%s", p->refused.text);
	p->opened = p->ck->opened;
	if (p->ck->device)
		p->ck->device->late = false;
	rc = load_agree(p->ck->comm, rc, err, timeout);
	if (rc == 0)
		rc = compare_flags(p, err);
	if (rc == 0) {
		rc = load_agree(p->ck->comm, load_locate(p, err), err, timeout);
		if (rc == -ESTALE ||
		    rc == -ENOENT) /* the files have changed since they were opened */
			rc = load_renew(p, err);
	}
	if (rc == 0)
		rc = check_room(p, err);
	if (rc == 0)
		rc = load_agree(p->ck->comm, allocate_memory(p, err), err, timeout);
	if (rc == 0 && p->flags & (DCPLOAD_STRICT | DCPLOAD_SAME_KEYS | DCPLOAD_PARTIAL))
		rc = load_check_keys(p, err);
	if (rc == 0)
		rc = load_decide(p, err);
	p->finished |= rc == 0;
	p->report.plan_ns = (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	return load_while(err, rc, "planning");
}
