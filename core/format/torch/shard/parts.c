/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch/torch.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/format/gather/join.h"
#include "core/model/tensor.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"

enum { MAX_NESTED = 4, LIMIT = 512 << 20, MAX_OBJECT = 1 << 20 };

/* The data that one shard has of a part. */
struct held {
	struct held *next;
	struct dcp_shard_parts_shard s;
	struct dcp_torch_tensor tt;
	struct dcp_tensor t; /* key, path, type */
	bool empty;          /* the shard has no elements */
	bool hashed;
	uint64_t hash; /* of the bytes */
};

struct list {
	struct held *first, *last;
	const char *why; /* not NULL: the part cannot be read */
};

void dcp_shard_parts_init(struct dcp_shard_parts *g)
{
	*g = (struct dcp_shard_parts){ 0 };
	dcp_arena_init(&g->arena, LIMIT);
}

void dcp_shard_parts_finish(struct dcp_shard_parts *g)
{
	dcp_intern_finish(&g->names);
	dcp_intern_finish(&g->keys);
	dcp_buf_finish(&g->lists);
	dcp_buf_finish(&g->objects);
	dcp_arena_finish(&g->arena);
}

/* ---- one shard ---- */

struct adding {
	struct dcp_shard_parts *g;
	const struct dcp_torch *t;
	struct dcp_shard_parts_shard s; /* in the arena */
	struct dcp_buf path;            /* const char *: of the part at hand */
};

static const char *const *copy_path(struct dcp_arena *arena, const char *const *path, size_t n)
{
	const char **to = dcp_arena_calloc(arena, n + 1, sizeof(*to));

	for (size_t i = 0; to && i < n; i++) {
		to[i] = dcp_arena_strdup(arena, path[i]);
		to = to[i] ? to : NULL;
	}
	return to;
}

static bool copy_shard(struct dcp_arena *arena, struct dcp_shard_parts_shard *s)
{
	size_t dims = s->ndim * sizeof(*s->shape);
	struct dcp_torch_placement_box *box =
		dcp_arena_calloc(arena, s->nbox + 1, sizeof(*box));

	for (size_t i = 0; box && i < s->nbox; i++) {
		box[i].lo = dcp_arena_dup(arena, s->box[i].lo, 1, dims);
		box[i].at = dcp_arena_dup(arena, s->box[i].at, 1, dims);
		box[i].len = dcp_arena_dup(arena, s->box[i].len, 1, dims);
		if (!box[i].lo || !box[i].at || !box[i].len)
			return false;
	}
	s->box = box;
	s->shape = dcp_arena_dup(arena, s->shape, 1, dims);
	s->local = dcp_arena_dup(arena, s->local, 1, dims);
	s->key = dcp_arena_strdup(arena, s->key);
	s->path = copy_path(arena, s->path, s->npath);
	return box && s->shape && s->local && s->key && s->path;
}

/* The list of the part whose path is in x->path; NULL: no memory. */
static struct list *list_of(struct adding *x, const char **key)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	const char **path = DCP_ITEMS(x->path, const char *);
	struct list fresh = { 0 };
	uint32_t number;
	int rc;

	dcp_buf_str(&text, x->s.key);
	for (size_t i = x->s.npath; i < DCP_NITEMS(x->path, const char *); i++)
		dcp_buf_printf(&text, ".%s", path[i]);
	if (dcp_buf_error(&text))
		return NULL;
	rc = dcp_intern_str(&x->g->names, text.p, &number);
	if (rc < 0 || (rc == 1 && dcp_buf_add(&x->g->lists, &fresh, sizeof(fresh)) < 0))
		return NULL;
	*key = dcp_arena_strdup(&x->g->arena, text.p);
	return DCP_ITEMS(x->g->lists, struct list) + number;
}

static int add_tensor(struct adding *x, struct dcp_pv v)
{
	struct dcp_arena *arena = &x->g->arena;
	struct held *h = dcp_arena_calloc(arena, 1, sizeof(*h));
	struct dcp_err why = { 0 };
	uint64_t volume = 0;
	struct list *l;
	int rc;

	if (!h)
		return -ENOMEM;
	h->s = x->s;
	h->t.npath = DCP_NITEMS(x->path, const char *);
	h->t.path = copy_path(arena, DCP_ITEMS(x->path, const char *), h->t.npath);
	l = list_of(x, &h->t.key);
	if (!l || !h->t.key || !h->t.path)
		return -ENOMEM;
	rc = dcp_torch_tensor(x->t, v, &h->tt, &why);
	if (rc == 1 && h->tt.filter != DCP_FILTER_NONE)
		rc = dcp_fail(&why, -ENOTSUP, "a part that is a negative or conjugate view");
	if (rc == -ENOMEM)
		return rc;
	if (rc != 1)
		l->why = l->why ? l->why
				: dcp_arena_strdup(arena, why.msg[0] ? why.msg : "damaged");
	h->empty = dcp_shape_volume(x->s.local, x->s.ndim, &volume) && volume == 0;
	h->hashed = rc == 1 && dcp_torch_tensor_hash(x->t, &h->tt, &h->hash) == 0;
	h->t.dtype = h->tt.dtype;
	h->t.dtype_name = h->tt.dtype_name;
	h->t.itemsize = h->tt.itemsize;
	if (l->last)
		l->last->next = h;
	else
		l->first = h;
	l->last = h;
	return 0;
}

static int add_parts(struct adding *x, const struct dcp_torch_parts *p, int depth)
{
	int rc = 0;

	for (size_t i = 0; i < p->n && rc == 0; i++) {
		struct dcp_pv v = p->part[i].value;
		struct dcp_torch_parts inner;

		if (dcp_buf_add(&x->path, &p->part[i].name, sizeof(p->part[i].name)) < 0)
			return -ENOMEM;
		if (dcp_torch_is_tensor(v))
			rc = add_tensor(x, v);
		else if (depth < MAX_NESTED && dcp_torch_parts(v, &inner))
			rc = add_parts(x, &inner, depth + 1);
		x->path.n -= sizeof(p->part[i].name);
	}
	return rc;
}

/* ---- its class and settings ---- */

/* Is it the shape of the shard, and not that of the whole tensor? */
static bool is_local_shape(const struct dcp_shard_parts_shard *s, struct dcp_pv v)
{
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t ndim;

	return dcp_torch_dims(v, dims, &ndim) && ndim == s->ndim &&
	       memcmp(dims, s->local, ndim * sizeof(*dims)) == 0 &&
	       memcmp(dims, s->shape, ndim * sizeof(*dims)) != 0;
}

static int write_object(struct adding *x, const struct dcp_torch_parts *p, struct dcp_buf *out)
{
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, out, false);
	dcp_jsonw_object(&w);
	dcp_jsonw_put_str(&w, "$class", p->kind);
	for (size_t i = 0; i < p->n; i++) {
		dcp_auto_buf struct dcp_buf value = DCP_BUF_INIT;
		int rc;

		if (is_local_shape(&x->s, p->part[i].value)) {
			if (strcmp(p->part[i].name, "block_size") == 0)
				continue; /* of the whole or of each shard: the scales tell */
			dcp_jsonw_put_u64s(&w, p->part[i].name, x->s.shape, x->s.ndim);
			continue;
		}
		if (dcp_buf_add(&x->path, &p->part[i].name, sizeof(p->part[i].name)) < 0)
			return -ENOMEM;
		rc = dcp_pyjson_write(&value, x->t, p->part[i].value,
				      DCP_ITEMS(x->path, const char *),
				      DCP_NITEMS(x->path, const char *));
		x->path.n -= sizeof(p->part[i].name);
		if (rc < 0 || value.n > MAX_OBJECT)
			return rc < 0 ? rc : -E2BIG;
		dcp_jsonw_key(&w, p->part[i].name);
		dcp_jsonw_raw(&w, value.p, value.n);
	}
	dcp_jsonw_end(&w);
	return dcp_buf_error(out) || w.failed ? -ENOMEM : 0;
}

/* Add the object of the shard that was added first. */
static int add_object(struct adding *x, const struct dcp_torch_parts *p)
{
	dcp_auto_buf struct dcp_buf json = DCP_BUF_INIT;
	struct dcp_object o = { .key = x->s.key, .path = x->s.path, .npath = x->s.npath };
	uint32_t number;
	int rc = dcp_intern_str(&x->g->keys, x->s.key, &number);

	if (rc != 1)
		return rc;
	rc = write_object(x, p, &json);
	if (rc == -ENOMEM)
		return rc;
	o.type = dcp_arena_strdup(&x->g->arena, p->kind);
	o.error = rc < 0 ? "its settings cannot be shown" : NULL;
	o.json = rc < 0 ? NULL : dcp_arena_strndup(&x->g->arena, json.p, json.n);
	o.json_len = rc < 0 ? 0 : json.n;
	if (!o.type || (rc == 0 && !o.json))
		return -ENOMEM;
	return dcp_buf_add(&x->g->objects, &o, sizeof(o)) < 0 ? -ENOMEM : 0;
}

int dcp_shard_parts_add(struct dcp_shard_parts *g, const struct dcp_torch *t, struct dcp_pv v,
			const struct dcp_shard_parts_shard *s)
{
	struct adding x = { .g = g, .t = t, .s = *s };
	struct dcp_torch_parts p;
	int rc;

	if (!dcp_torch_parts(v, &p) || !copy_shard(&g->arena, &x.s))
		return -ENOMEM;
	dcp_buf_add(&x.path, x.s.path, x.s.npath * sizeof(*x.s.path));
	rc = dcp_buf_error(&x.path) ? -ENOMEM : add_object(&x, &p);
	if (rc == 0)
		rc = add_parts(&x, &p, 0);
	dcp_buf_finish(&x.path);
	return rc;
}

/* ---- how a part is cut ---- */

/* One dimension of a part. block: the number of tensor elements for each element of the part; 0:
 * the dimension is not cut, and the shards have all of it. */
struct rule {
	uint64_t block, shape;
};

/* A range of the tensor along that dimension, or along all of its elements in a row. */
struct range {
	uint64_t lo, at, len;  /* in the whole, in the shard */
	uint64_t whole, local; /* lengths of both */
	uint64_t part;         /* length of the part in the shard */
};

static uint64_t count_blocks(uint64_t n, uint64_t block)
{
	return n / block + (n % block != 0);
}

static bool fits_blocks(const struct range *r, uint64_t block)
{
	return r->part == count_blocks(r->local, block) && r->lo % block == 0 &&
	       r->at % block == 0 && (r->len % block == 0 || r->lo + r->len == r->whole);
}

/* Find the block by the longest shard. @same: all shards are equal. */
static bool find_rule(const struct range *r, size_t n, bool same, struct rule *out)
{
	uint64_t longest = 0, part = 0;
	bool cut = false, each = true, one = true;

	if (n == 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		cut = cut || r[i].len != r[i].whole;
		each = each && r[i].part == r[i].local;
		one = one && r[i].part == 1;
		if (r[i].local > longest) {
			longest = r[i].local;
			part = r[i].part;
		}
	}
	*out = (struct rule){ 0, r[0].part };
	if (cut && !each && one && same)
		cut = false;
	if (cut) {
		if (part == 0 || longest % part)
			return false;
		out->block = longest / part;
		out->shape = count_blocks(r[0].whole, out->block);
	}
	for (size_t i = 0; i < n; i++)
		if (cut ? !fits_blocks(&r[i], out->block) : r[i].part != out->shape)
			return false;
	return true;
}

/* The range of the elements in a row that @box covers; false: several ranges. */
static bool flat_range(const struct dcp_shard_parts_shard *s,
		       const struct dcp_torch_placement_box *box, struct range *r)
{
	uint64_t step[2] = { 1, 1 }, more;
	bool inner = true, bad = false;

	*r = (struct range){ .len = 1 };
	for (uint32_t k = s->ndim; k-- > 0;) {
		if (!inner && box->len[k] != 1)
			return false;
		inner = inner && box->len[k] == s->shape[k] && box->len[k] == s->local[k];
		bad |= dcp_ckd_mul(&more, box->lo[k], step[0]) ||
		       dcp_ckd_add(&r->lo, r->lo, more) ||
		       dcp_ckd_mul(&more, box->at[k], step[1]) ||
		       dcp_ckd_add(&r->at, r->at, more) ||
		       dcp_ckd_mul(&r->len, r->len, box->len[k]) ||
		       dcp_ckd_mul(&step[0], step[0], s->shape[k]) ||
		       dcp_ckd_mul(&step[1], step[1], s->local[k]);
	}
	r->whole = step[0];
	r->local = step[1];
	return !bad;
}

/* Is it a table of the values that codes stand for, by torchao's name? */
static bool is_table(const struct held *h)
{
	const char *name = h->t.path[h->t.npath - 1];

	return strcmp(name, "qmap") == 0 || strcmp(name, "nf4") == 0;
}

enum form { SAME, FLAT, DIMENSIONS };

struct joining {
	struct dcp_arena *arena;
	const struct list *l;
	enum form form;
	bool same; /* all shards have the same bytes */
	uint32_t ndim;
	struct rule rule[DCP_MAX_NDIM];
	size_t nboxes; /* of all shards that have elements */
};

static bool range_of(const struct joining *x, const struct held *h,
		     const struct dcp_torch_placement_box *box, uint32_t k, struct range *r)
{
	bool ok = true;

	if (x->form == FLAT)
		ok = flat_range(&h->s, box, r);
	else
		*r = (struct range){ .lo = box->lo[k],
				     .at = box->at[k],
				     .len = box->len[k],
				     .whole = h->s.shape[k],
				     .local = h->s.local[k] };
	r->part = h->tt.shape[k];
	return ok;
}

/* Find the rules of all dimensions. -ENOMEM; -ENOTSUP: there are none. */
static int find_rules(struct joining *x)
{
	struct range *all = dcp_arena_calloc(x->arena, x->nboxes + 1, sizeof(*all));

	for (uint32_t k = 0; k < x->ndim; k++) {
		size_t n = 0;

		for (const struct held *h = x->l->first; all && h; h = h->next)
			for (size_t i = 0; !h->empty && i < h->s.nbox; i++)
				if (!range_of(x, h, &h->s.box[i], k, &all[n++]))
					return -ENOTSUP;
		if (all && !find_rule(all, n, x->same, &x->rule[k]))
			return -ENOTSUP;
	}
	return all ? 0 : -ENOMEM;
}

/* Find the elements of the part that stand for those of @box. */
static int place_box(const struct joining *x, const struct held *h,
		     const struct dcp_torch_placement_box *box, struct dcp_piece *p)
{
	uint64_t *dims = dcp_arena_calloc(x->arena, 3 * (size_t)x->ndim + 1, sizeof(*dims));
	struct dcp_torch_placement_box at = { dims, dims + x->ndim, dims + 2 * x->ndim };

	if (!dims)
		return -ENOMEM;
	for (uint32_t k = 0; k < x->ndim; k++) {
		uint64_t block = x->form == SAME ? 0 : x->rule[k].block;
		struct range r;

		dims[2 * x->ndim + k] = h->tt.shape[k];
		if (!block)
			continue;
		range_of(x, h, box, k, &r);
		dims[k] = r.lo / block;
		dims[x->ndim + k] = r.at / block;
		dims[2 * x->ndim + k] = count_blocks(r.len, block);
	}
	p->file = h->s.file;
	p->swap = h->tt.swap;
	if (dcp_ckd_add(&p->off, h->s.base, h->tt.off))
		return -EBADMSG;
	return dcp_torch_placement_piece(&at, x->ndim, h->tt.shape,
					 h->tt.row_major ? NULL : h->tt.stride, h->tt.itemsize,
					 x->arena, p);
}

/* Add the data that shard @h has of the part. */
static int add_copy(const struct joining *x, const struct held *h, const uint64_t *shape,
		    struct dcp_copies *copies)
{
	struct dcp_piece *p = dcp_arena_calloc(x->arena, h->s.nbox + 1, sizeof(*p));
	struct dcp_tensor t = h->t;
	size_t n = x->form == SAME ? 1 : h->s.nbox;
	uint64_t volume;
	int rc = p ? 0 : -ENOMEM;

	t.ndim = x->ndim;
	t.shape = shape;
	t.pieces = p;
	if (dcp_shape_volume(shape, x->ndim, &volume) && volume == 0)
		n = 0;
	for (; rc == 0 && t.npieces < n; t.npieces++)
		rc = place_box(x, h, &h->s.box[t.npieces], &p[t.npieces]);
	if (rc == -EBADMSG) {
		t.npieces = 0;
		t.error = "its place in the file does not fit in 64 bits";
		rc = 0;
	}
	return rc < 0 ? rc : dcp_copies_add(copies, &t, h->s.who, h->s.name);
}

static int add_broken(const struct held *h, const char *why, struct dcp_copies *copies)
{
	struct dcp_tensor t = h->t;

	t.error = why;
	t.ndim = 0;
	t.shape = dcp_origin;
	if (!t.dtype_name)
		t.dtype_name = "";
	return dcp_copies_add(copies, &t, h->s.who, h->s.name);
}

/* Find a fault of the shards as a whole; NULL: none. */
static const char *find_fault(struct joining *x)
{
	const struct held *first = NULL;

	x->same = true;
	if (x->l->why)
		return x->l->why;
	for (const struct held *h = x->l->first; h; h = h->next) {
		if (h->empty && h != x->l->last)
			continue;
		x->nboxes += h->s.nbox;
		if (!first)
			first = h;
		if (h->s.ndim != first->s.ndim || h->tt.ndim != first->tt.ndim ||
		    memcmp(h->s.shape, first->s.shape, h->s.ndim * sizeof(*h->s.shape)) != 0)
			return "the ranks disagree about its shape";
		x->same = x->same && h->hashed && h->hash == first->hash;
	}
	return NULL;
}

static int join_part(struct dcp_arena *arena, const struct list *l, struct dcp_copies *copies)
{
	struct joining x = { .arena = arena, .l = l };
	const struct held *first = l->first;
	const char *why = find_fault(&x);
	uint64_t shape[DCP_MAX_NDIM];
	int rc = 0;

	while (first->empty && first->next)
		first = first->next;
	if (!why) {
		x.ndim = first->tt.ndim;
		x.form = first->empty || is_table(first)     ? SAME
			 : x.ndim == first->s.ndim && x.ndim ? DIMENSIONS
			 : x.ndim == 1                       ? FLAT
							     : SAME;
		rc = x.form == SAME ? 0 : find_rules(&x);
		if (rc == -ENOMEM)
			return rc;
		if (x.form == SAME && !x.same)
			why = "the ranks hold different values of a part that has no place "
			      "for several: each rank quantized its shard by itself";
		else if (rc < 0)
			why = "how the ranks cut it does not follow from its shape";
	}
	if (why)
		return add_broken(first, why, copies);
	for (uint32_t k = 0; k < x.ndim; k++)
		shape[k] = x.form == SAME ? first->tt.shape[k] : x.rule[k].shape;
	rc = 0;
	for (const struct held *h = first; h && rc == 0; h = h->next)
		if (!h->empty || h == first)
			rc = add_copy(&x, h, shape, copies);
	return rc;
}

int dcp_shard_parts_join(struct dcp_shard_parts *g, struct dcp_copies *copies,
			 const struct dcp_sink *sink)
{
	int rc = 0;

	for (size_t i = 0; i < DCP_NITEMS(g->objects, struct dcp_object) && rc == 0; i++)
		rc = dcp_emit_object(sink, DCP_ITEMS(g->objects, struct dcp_object) + i);
	for (size_t i = 0; i < DCP_NITEMS(g->lists, struct list) && rc == 0; i++)
		rc = join_part(&g->arena, DCP_ITEMS(g->lists, struct list) + i, copies);
	return rc;
}
