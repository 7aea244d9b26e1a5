/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensor is in which file of the model. */
#include "core/hf/hf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"

enum { PLAN_MEMORY = 1 << 30 }; /* names of keys */

struct plan {
	struct dcp_arena arena;
	struct dcp_buf items; /* struct dcp_safetensors_item, by row */
	const struct dcp_version *v;
};

static int add_item(struct plan *p, const struct dcp_row *row)
{
	struct dcp_safetensors_item item = { .number = (uint64_t)row->id,
					     .nbytes = row->nbytes,
					     .itemsize = dcp_dtype_info(row->dtype)->size };

	if (row->broken || dcp_hf_is_tied(p->v, row->id) ||
	    !dcp_view_can_show(row->key, row->dtype, DCP_AS_SAFETENSORS))
		return 0;
	item.key = dcp_arena_strdup(&p->arena, row->key);
	dcp_buf_add(&p->items, &item, sizeof(item));
	return item.key && !dcp_buf_error(&p->items) ? 0 : -ENOMEM;
}

static int arrange_items(struct dcp_hf_weights *out, struct plan *p, uint64_t size)
{
	struct dcp_safetensors_item *item = DCP_ITEMS(p->items, struct dcp_safetensors_item);
	size_t n = DCP_NITEMS(p->items, struct dcp_safetensors_item);

	out->row = calloc(n + 1, sizeof(*out->row));
	out->first = calloc(n + 2, sizeof(*out->first));
	if (!out->row || !out->first)
		return -ENOMEM;
	if (n)
		out->nfiles = dcp_safetensors_arrange(item, n, size, out->first);
	for (size_t i = 0; i < n; i++) {
		out->row[i] = (int64_t)item[i].number;
		out->nbytes += item[i].nbytes;
	}
	return 0;
}

int dcp_hf_weights_plan(struct dcp_version *v, uint64_t size, struct dcp_hf_weights *out)
{
	struct plan p = { .arena = DCP_ARENA_INIT(PLAN_MEMORY), .v = v };
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = add_item(&p, &row);
	if (rc == 0)
		rc = arrange_items(out, &p, dcp_hf_adapter(v) ? UINT64_MAX : size);
	dcp_arena_finish(&p.arena);
	dcp_buf_finish(&p.items);
	return rc;
}

/* Where a row belongs: row @id is tensor number @at of a file. */
struct placed {
	uint64_t id;
	size_t at;
};

struct kept_row {
	const char *key, *name;
	uint64_t nbytes, *shape;
	enum dcp_dtype dtype;
	uint32_t ndim;
};

/* Rows are requested in ascending order, in one pass. */
static int keep_rows(struct dcp_index *ix, const struct placed *p, size_t n,
		     struct kept_row *out, struct dcp_arena *arena)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	size_t i = 0;
	int rc = dcp_index_scan(ix, DCP_ROW_TENSOR, (int64_t)p[0].id - 1, false, &scan);

	if (rc < 0)
		return rc;
	while (i < n && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct kept_row *to = &out[p[i].at];

		if ((uint64_t)row.id != p[i].id)
			continue;
		i++;
		*to = (struct kept_row){ .key = dcp_arena_strdup(arena, row.key),
					 .name = dcp_arena_strdup(arena, row.name),
					 .shape = dcp_arena_calloc(arena, row.ndim + 1,
								   sizeof(*to->shape)),
					 .nbytes = row.nbytes,
					 .dtype = row.dtype,
					 .ndim = row.ndim };
		if (!to->key || !to->name || !to->shape) {
			rc = -ENOMEM;
			break;
		}
		memcpy(to->shape, row.shape, row.ndim * sizeof(*to->shape));
	}
	return rc < 0 ? rc : i < n ? -EBADMSG : 0;
}

int dcp_hf_weights_rows(const struct dcp_version *v, const struct dcp_hf_weights *w, size_t n,
			int (*fn)(void *ctx, struct dcp_row *row), void *ctx)
{
	size_t first, count;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(PLAN_MEMORY);
	struct kept_row *rows;
	struct placed *p;
	int rc = -ENOMEM;

	if (n >= w->nfiles)
		return -ENOENT;
	first = w->first[n];
	count = w->first[n + 1] - first;
	if (count == 0)
		return 0;
	p = dcp_arena_calloc(&arena, count, sizeof(*p));
	rows = dcp_arena_calloc(&arena, count, sizeof(*rows));
	if (p && rows) {
		for (size_t i = 0; i < count; i++)
			p[i] = (struct placed){ (uint64_t)w->row[first + i], i };
		DCP_SORT(p, count, dcp_by_u64);
		rc = keep_rows(dcp_version_index(v), p, count, rows, &arena);
	}
	for (size_t i = 0; rc == 0 && i < count; i++) {
		struct dcp_row row = { .id = w->row[first + i],
				       .key = rows[i].key,
				       .name = rows[i].name,
				       .nbytes = rows[i].nbytes,
				       .dtype = rows[i].dtype,
				       .ndim = rows[i].ndim };

		memcpy(row.shape, rows[i].shape, row.ndim * sizeof(*row.shape));
		rc = fn(ctx, &row);
	}
	return rc;
}

void dcp_hf_weights_name(const struct dcp_version *v, const struct dcp_hf_weights *w, size_t n,
			 char name[DCP_SAFETENSORS_NAME])
{
	dcp_safetensors_file_name(name, dcp_hf_stem(v), n, w->nfiles);
}

void dcp_hf_weights_finish(struct dcp_hf_weights *w)
{
	free(w->row);
	free(w->first);
}
