/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch_checkpointing/items_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"

int dcp_items_work(struct dcp_items_meta *m, uint64_t n, struct dcp_err *err)
{
	m->work += n;
	m->exhausted = m->work > m->work_limit;
	if (!m->exhausted)
		return 0;
	return dcp_fail(err, -E2BIG,
			"its lists of ranks and its paths add up to more than %" PRIu64
			" values",
			m->work_limit);
}

void dcp_items_meta_finish(struct dcp_items_meta *m)
{
	dcp_arena_finish(&m->arena);
	dcp_intern_finish(&m->names);
	dcp_intern_finish(&m->keys);
	dcp_intern_finish(&m->lists);
	dcp_buf_finish(&m->items);
	dcp_buf_finish(&m->entries);
	dcp_buf_finish(&m->shared);
	dcp_buf_finish(&m->pending);
	dcp_buf_finish(&m->scratch);
}

struct dcp_items_entry *dcp_items_entries(const struct dcp_items_meta *m)
{
	return DCP_ITEMS(m->entries, struct dcp_items_entry);
}

struct dcp_items_item *dcp_items_items(const struct dcp_items_meta *m)
{
	return DCP_ITEMS(m->items, struct dcp_items_item);
}

size_t dcp_items_nentries(const struct dcp_items_meta *m)
{
	return DCP_NITEMS(m->entries, struct dcp_items_entry);
}

const struct dcp_items_entry *dcp_items_entry(const struct dcp_items_meta *m, size_t i)
{
	return &dcp_items_entries(m)[i];
}

const struct dcp_items_entry *dcp_items_find(const struct dcp_items_meta *m, const char *key)
{
	uint32_t i = dcp_intern_find(&m->keys, key, strlen(key));

	return i == DCP_INTERN_NONE ? NULL : &dcp_items_entries(m)[i];
}

const struct dcp_items_rank *dcp_items_list_find(const struct dcp_items_list *l, uint32_t rank)
{
	return DCP_FIND(&rank, l->by_rank, l->n, dcp_by_u32);
}

const struct dcp_items_group *dcp_items_group_of(const struct dcp_items_entry *e, uint32_t rank)
{
	for (const struct dcp_items_group *g = e->first; g; g = g->next)
		if (g->ranks && dcp_items_list_find(g->ranks, rank))
			return g;
	return NULL;
}

int dcp_items_get_item(struct dcp_items_meta *m, const char *name, uint32_t *number)
{
	struct dcp_items_item fresh = { 0 };
	int rc = dcp_intern_str(&m->names, name, number);

	if (rc != 1)
		return rc;
	fresh.name = dcp_arena_strdup(&m->arena, name);
	dcp_buf_add(&m->items, &fresh, sizeof(fresh));
	return fresh.name ? dcp_buf_error(&m->items) : -ENOMEM;
}

/* Reading one group: ranks that hold a tensor in the same way. */

struct reading {
	struct dcp_items_meta *m;
	struct dcp_items_group *g;
	struct dcp_err *err;
};

static int fail_damaged(const struct reading *r, const char *why)
{
	return dcp_fail(r->err, -EBADMSG, "%s", why);
}

/* ---- lists of ranks ---- */

static int make_list(struct dcp_items_meta *m, const uint32_t *rank, size_t n)
{
	struct dcp_items_list *l =
		dcp_arena_alloc(&m->arena, sizeof(*l) + n * sizeof(l->by_rank[0]));

	if (!l)
		return -ENOMEM;
	l->n = n;
	for (size_t i = 0; i < n; i++)
		l->by_rank[i] = (struct dcp_items_rank){ rank[i], (uint32_t)i };
	DCP_SORT(l->by_rank, n, dcp_by_u32);
	return dcp_buf_add(&m->shared, &l, sizeof(l));
}

static bool has_twice(const struct dcp_items_list *l)
{
	for (size_t i = 1; i < l->n; i++)
		if (l->by_rank[i - 1].rank == l->by_rank[i].rank)
			return true;
	return false;
}

/* Read the tuple or list @v of ranks; equal lists share one. */
static int read_list(const struct reading *r, struct dcp_pv v,
		     const struct dcp_items_list **out)
{
	struct dcp_items_meta *m = r->m;
	const struct dcp_items_list *l;
	uint32_t number;
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(v, &n);
	int rc;

	if (n == 0 || n > DCP_ITEMS_MAX_RANKS)
		return fail_damaged(r, "its list of ranks is missing, empty or too long");
	rc = dcp_items_work(m, n, r->err);
	if (rc < 0)
		return rc;
	dcp_buf_reset(&m->scratch);
	for (size_t i = 0; i < n; i++) {
		uint64_t rank;
		uint32_t small;

		if (!dcp_pv_u64(item[i], &rank) || rank >= DCP_ITEMS_MAX_RANKS)
			return fail_damaged(r, "its list of ranks holds something else");
		small = (uint32_t)rank;
		dcp_buf_add(&m->scratch, &small, sizeof(small));
	}
	rc = dcp_buf_error(&m->scratch);
	if (rc == 0)
		rc = dcp_intern_add(&m->lists, m->scratch.p, m->scratch.n, DCP_INTERN_NONE,
				    &number);
	if (rc == 1)
		rc = make_list(m, DCP_ITEMS(m->scratch, uint32_t), n);
	if (rc < 0)
		return -ENOMEM;
	l = DCP_ITEMS(m->shared, struct dcp_items_list *)[number];
	if (has_twice(l))
		return fail_damaged(r, "its list of ranks holds one of them twice");
	*out = l;
	return 0;
}

/* ---- fields that every type of sharding metadata has ---- */

static int read_whole(const struct reading *r, struct dcp_pv data)
{
	const struct dcp_pv *shape = dcp_pv_get(data, "global_shape");
	const char *name = dcp_pv_str(dcp_pv_at(data, "dtype"));
	uint64_t dims[DCP_MAX_NDIM];
	int rc;

	if (!name || strncmp(name, "torch.", 6) != 0 || !shape)
		return fail_damaged(r, "its dtype or global_shape is missing");
	rc = dcp_torch_field_dims(*shape, "global_shape", dims, &r->g->ndim, r->err);
	if (rc < 0)
		return rc;
	r->g->shape = dcp_arena_dup(&r->m->arena, dims, r->g->ndim, sizeof(*dims));
	r->g->dtype = dcp_arena_strdup(&r->m->arena, name + 6);
	return r->g->shape && r->g->dtype ? 0 : -ENOMEM;
}

/* ---- DTensorShardingMetadata ---- */

static int read_place(const struct reading *r, struct dcp_pv v, struct dcp_torch_placement *p)
{
	const struct dcp_pv dim = dcp_pv_at(v, "dim");
	const char *name = dcp_pv_str(dcp_pv_at(v, "type")) ?: "nothing";
	uint64_t n = 0;

	p->kind = DCP_TORCH_PLACEMENT_REPLICATE;
	if (strcmp(name, "Replicate") == 0)
		return 0;
	p->kind = DCP_TORCH_PLACEMENT_SHARD;
	if (strcmp(name, "StridedShard") == 0)
		p->kind = DCP_TORCH_PLACEMENT_STRIDED;
	else if (strcmp(name, "Shard") != 0)
		return dcp_fail(r->err, -ENOTSUP,
				"it is placed by %.60s, expected Shard, StridedShard or "
				"Replicate",
				name);
	if (dim.type == DCP_PV_INT && dim.i < 0 && dim.i >= -(int64_t)r->g->ndim)
		n = (uint64_t)(dim.i + r->g->ndim);
	else if (!dcp_pv_u64(dim, &n) || n >= DCP_MAX_NDIM)
		return fail_damaged(r, "its Shard names no dimension");
	p->dim = (uint32_t)n;
	if (p->kind == DCP_TORCH_PLACEMENT_STRIDED &&
	    !dcp_pv_u64(dcp_pv_at(v, "split_factor"), &p->factor))
		return fail_damaged(r, "its StridedShard has no split_factor");
	return 0;
}

static int read_mesh(const struct reading *r, struct dcp_pv mesh,
		     struct dcp_torch_placement *place)
{
	const struct dcp_pv *shape = dcp_pv_get(mesh, "mesh_shape");
	uint64_t dims[DCP_MAX_NDIM], ranks;
	uint32_t n;
	int rc;

	if (!shape)
		return fail_damaged(r, "its mesh has no mesh_shape");
	rc = dcp_torch_field_dims(*shape, "mesh_shape", dims, &n, r->err);
	if (rc == 0)
		rc = read_list(r, dcp_pv_at(mesh, "mesh_data"), &r->g->mesh);
	if (rc < 0)
		return rc;
	if (n != r->g->nplace)
		return dcp_fail(r->err, -EBADMSG,
				"its mesh has %u dimension%s, its placements are %u", n,
				dcp_s(n), r->g->nplace);
	if (!dcp_shape_volume(dims, n, &ranks) || ranks != r->g->mesh->n)
		return fail_damaged(r,
				    "its mesh has another number of ranks than its mesh_shape");
	for (uint32_t i = 0; i < n; i++)
		place[i].n = dims[i];
	return 0;
}

static int read_dtensor(const struct reading *r, struct dcp_pv data)
{
	const struct dcp_pv *mesh = dcp_pv_get(data, "mesh_spec"), *item;
	const struct dcp_pv *placements = dcp_pv_get(data, "placements");
	struct dcp_torch_placement *place;
	int rc = 0;
	size_t n;

	if (!mesh || !placements)
		return fail_damaged(r, "its mesh_spec or placements are missing");
	item = dcp_pv_items(*placements, &n);
	if (n > DCP_TORCH_PLACEMENT_MAX)
		return fail_damaged(r, "its placements are too many");
	place = dcp_arena_calloc(&r->m->arena, n + 1, sizeof(*place));
	if (!place)
		return -ENOMEM;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = read_place(r, item[i], &place[i]);
	r->g->place = place;
	r->g->nplace = (uint32_t)n;
	return rc < 0 ? rc : read_mesh(r, *mesh, place);
}

/* ---- default_tensor_v1 ---- */

/* Read list number @i of @name, a list of lists, which has a number for each dimension. */
static int read_corner(const struct reading *r, struct dcp_pv data, const char *name, size_t i,
		       const uint64_t **out)
{
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t ndim;
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(data, name), &n);
	int rc;

	if (i >= n)
		return dcp_fail(r->err, -EBADMSG, "its %s are fewer than its other corners",
				name);
	rc = dcp_torch_field_dims(item[i], name, dims, &ndim, r->err);
	if (rc < 0)
		return rc;
	if (ndim != r->g->ndim)
		return dcp_fail(r->err, -EBADMSG, "its %s have %u dimension%s, expected %u",
				name, ndim, dcp_s(ndim), r->g->ndim);
	*out = dcp_arena_dup(&r->m->arena, dims, ndim, sizeof(*dims));
	return *out ? 0 : -ENOMEM;
}

static int read_box(const struct reading *r, struct dcp_pv data, size_t i,
		    struct dcp_torch_placement_box *b)
{
	int rc = read_corner(r, data, "global_offsets", i, &b->lo);

	if (rc == 0)
		rc = read_corner(r, data, "local_offsets", i, &b->at);
	if (rc == 0)
		rc = read_corner(r, data, "local_sizes", i, &b->len);
	for (uint32_t k = 0; rc == 0 && k < r->g->ndim; k++)
		if (!dcp_range_ok(b->lo[k], b->len[k], r->g->shape[k]))
			rc = dcp_fail(r->err, -EBADMSG,
				      "its shard %zu ends beyond dimension %u of the whole "
				      "tensor, which has %" PRIu64,
				      i, k, r->g->shape[k]);
	return rc;
}

static int read_boxes(const struct reading *r, struct dcp_pv data)
{
	const struct dcp_pv *list = dcp_pv_get(data, "global_offsets");
	struct dcp_torch_placement_box *box;
	int rc = 0;
	size_t n;

	dcp_pv_items(dcp_pv_at(data, "global_offsets"), &n);
	if (!list || n > DCP_ITEMS_MAX_BOXES)
		return fail_damaged(r, "its global_offsets are missing or too many");
	box = dcp_arena_calloc(&r->m->arena, n + 1, sizeof(*box));
	if (!box)
		return -ENOMEM;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = read_box(r, data, i, &box[i]);
	r->g->box = box;
	r->g->nbox = n;
	return rc;
}

/* ---- groups ---- */

static int read_group(const struct reading *r, struct dcp_pv v)
{
	const struct dcp_pv meta = dcp_pv_at(v, "sharding_metadata");
	const struct dcp_pv *data = dcp_pv_get(meta, "data");
	const char *name = dcp_pv_str(dcp_pv_at(meta, "type"));
	int rc = read_list(r, dcp_pv_at(v, "ranks"), &r->g->ranks);

	if (rc < 0)
		return rc;
	if (!name || !data)
		return fail_damaged(r, "its sharding_metadata has no type or no data");
	if (strcmp(name, "DTensorShardingMetadata") != 0 &&
	    strcmp(name, "default_tensor_v1") != 0)
		return dcp_fail(r->err, -ENOTSUP,
				"its sharding is described by %.80s, expected "
				"DTensorShardingMetadata or default_tensor_v1",
				name);
	rc = read_whole(r, *data);
	if (rc < 0)
		return rc;
	return *name == 'D' ? read_dtensor(r, *data) : read_boxes(r, *data);
}

int dcp_items_read_groups(struct dcp_items_meta *m, struct dcp_pv v,
			  struct dcp_items_group **out, struct dcp_err *err)
{
	struct dcp_items_group **last = out;
	const struct dcp_pv *item;
	size_t n;

	item = dcp_pv_items(v, &n);
	for (size_t i = 0; i < n; i++, last = &(*last)->next) {
		struct dcp_err why = { 0 };
		struct reading r = { m, dcp_arena_calloc(&m->arena, 1, sizeof(**last)), &why };
		int rc = r.g ? read_group(&r, item[i]) : -ENOMEM;

		if (rc == -ENOMEM || m->exhausted)
			return dcp_err_give(err, &why, rc);
		if (rc < 0)
			r.g->error = dcp_arena_strdup(&m->arena, why.msg);
		if (rc < 0 && !r.g->error)
			return -ENOMEM;
		*last = r.g;
	}
	return 0;
}

/* Reading layouts: which file holds an item of a rank. */

static int read_layout(struct dcp_items_meta *m, struct dcp_pv v, struct dcp_items_layout *out)
{
	static const char *const names[] = { "TorchSerialization", "JsonSerialization",
					     "RawSerialization", "SafetensorsSerialization" };
	const struct dcp_pv *type = dcp_pv_get(dcp_pv_at(v, "serialization_format"), "type");
	const char *text = dcp_pv_str(dcp_pv_at(v, "file_path"));
	size_t i = 0;

	out->coding = DCP_ITEMS_TORCH;
	if (v.type == DCP_PV_NONE)
		return 0;
	out->path = dcp_arena_strdup(&m->arena, text ?: "");
	while (type && i < DCP_LEN(names) && !dcp_pv_is_str(*type, names[i]))
		i++;
	out->coding = type ? (enum dcp_items_coding)i : DCP_ITEMS_UNKNOWN;
	if (!text || !*text)
		out->error = "metadata.pkl names no file for it";
	else if (out->coding == DCP_ITEMS_UNKNOWN)
		out->error = "metadata.pkl says that it is written in a way other than "
			     "torch.save, JSON, raw bytes or safetensors";
	return out->path ? 0 : -ENOMEM;
}

const struct dcp_items_layout *dcp_items_layout_of(const struct dcp_items_item *it,
						   uint32_t rank)
{
	return DCP_FIND(&rank, it->layout, it->nlayouts, dcp_by_u32);
}

/* A rank is an int, or a str if the pickle was made from JSON. */
static bool read_rank(struct dcp_pv v, uint32_t *out)
{
	const char *text = dcp_pv_str(v);
	uint64_t n;

	if (text ? !dcp_take_number(&text, NULL, DCP_ANY_DIGITS, &n) || *text
		 : !dcp_pv_u64(v, &n))
		return false;
	*out = (uint32_t)n;
	return n < DCP_ITEMS_MAX_RANKS;
}

static int fail_wrong_rank(struct dcp_err *err)
{
	return dcp_fail(err, -EBADMSG,
			"a file belongs to something that is not a rank below %u",
			DCP_ITEMS_MAX_RANKS);
}

int dcp_items_read_layouts(struct dcp_items_meta *m, uint32_t number, struct dcp_pv v,
			   struct dcp_err *err)
{
	struct dcp_items_layout *all;
	const struct dcp_pv *kv;
	size_t n;

	kv = dcp_pv_pairs(v, &n);
	all = dcp_arena_calloc(&m->arena, n + 1, sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (!read_rank(kv[2 * i], &all[i].rank))
			return fail_wrong_rank(err);
		if (read_layout(m, kv[2 * i + 1], &all[i]) < 0)
			return -ENOMEM;
	}
	DCP_SORT(all, n, dcp_by_u32);
	dcp_items_items(m)[number].layout = all;
	dcp_items_items(m)[number].nlayouts = n;
	return 0;
}

/* Add one layout of version 1.0's {rank: {item: layout}} to the list of its item. The list has
 * room for a power of two. */
static int add_layout(struct dcp_items_meta *m, uint32_t rank, struct dcp_pv name,
		      struct dcp_pv v, struct dcp_err *err)
{
	struct dcp_items_layout *all;
	struct dcp_items_item *item;
	uint32_t number;
	size_t n;

	if (!dcp_pv_str(name))
		return dcp_fail(err, -EBADMSG, "a file belongs to an item that is not a str");
	if (dcp_items_get_item(m, dcp_pv_str(name), &number) < 0)
		return -ENOMEM;
	item = &dcp_items_items(m)[number];
	n = item->nlayouts;
	all = (struct dcp_items_layout *)(uintptr_t)item->layout;
	if ((n & (n - 1)) == 0) { /* full: a power of two, or nothing */
		all = dcp_arena_calloc(&m->arena, n ? 2 * n : 1, sizeof(*all));
		if (!all)
			return -ENOMEM;
		if (n)
			memcpy(all, item->layout, n * sizeof(*all));
		item->layout = all;
	}
	all[n].rank = rank;
	item->nlayouts++;
	return read_layout(m, v, &all[n]) < 0 ? -ENOMEM : 0;
}

int dcp_items_read_flat_layouts(struct dcp_items_meta *m, struct dcp_pv root,
				struct dcp_err *err)
{
	size_t n, k;
	const struct dcp_pv *kv = dcp_pv_pairs(dcp_pv_at(root, "rank_to_layout_info_mappings"),
					       &n),
			    *of;
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t rank;

		if (!read_rank(kv[2 * i], &rank))
			return fail_wrong_rank(err);
		of = dcp_pv_pairs(kv[2 * i + 1], &k);
		for (size_t j = 0; j < k && rc == 0; j++)
			rc = add_layout(m, rank, of[2 * j], of[2 * j + 1], err);
	}
	for (size_t i = 0; rc == 0 && i < m->names.n; i++) {
		const struct dcp_items_item *it = &dcp_items_items(m)[i];

		DCP_SORT((struct dcp_items_layout *)(uintptr_t)it->layout, it->nlayouts,
			 dcp_by_u32);
	}
	return rc;
}
