/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_read: reads a whole metadata.pkl.
 *
 * The unpickler hands over pairs when they are about to enter a dict. The pairs of
 * "nested_path_to_metadata" come before the name of their item, so they wait in m->pending until
 * the item's own dict is filled. Pairs that did not come through the hook are read from the root.
 */
#include "core/format/torch_checkpointing/items_int.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/format/torch/torch.h"
#include "core/origin/origin.h"
#include "core/parse/json.h"
#include "core/parse/pickle/pickle.h"

static const size_t arena_limit = (size_t)1 << 30;
/* The limit of ranks and characters that are read, as a multiple of the file's size. The list of a
 * mesh is stored once and read for every tensor, but each tensor also stores a list of ranks that
 * is as long. */
enum { WORK_PER_BYTE = 16, WORK_AT_LEAST = 64 << 20 };

static const char nested[] = "nested_path_to_metadata";

/* Make the list '["layers",0,"w"]' the path of @e, after a first component that is left free for
 * the item. -EBADMSG: a component is neither text nor a number. */
static int split_path(struct dcp_items_meta *m, const struct dcp_json *list,
		      struct dcp_items_entry *e)
{
	size_t n = dcp_json_len(list);
	const char **path = dcp_arena_calloc(&m->arena, n + 1, sizeof(*path));

	if (!path)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const struct dcp_json *c = dcp_json_at(list, i);
		const char *text = dcp_json_str(c);
		uint64_t number;

		dcp_buf_reset(&m->scratch);
		if (text)
			dcp_buf_str(&m->scratch, text);
		else if (dcp_json_u64(c, &number))
			dcp_buf_printf(&m->scratch, "%" PRIu64, number);
		else
			return -EBADMSG;
		path[i + 1] = dcp_arena_strndup(&m->arena, m->scratch.n ? m->scratch.p : "",
						m->scratch.n);
		if (dcp_buf_error(&m->scratch) || !path[i + 1])
			return -ENOMEM;
	}
	e->path = path;
	e->npath = n + 1;
	return 0;
}

/* Give @e, whose path cannot be read, the path's text as its only component. */
static int keep_text(struct dcp_items_meta *m, const char *text, struct dcp_items_entry *e)
{
	const char **path = dcp_arena_calloc(&m->arena, 2, sizeof(*path));

	if (!path)
		return -ENOMEM;
	path[1] = dcp_arena_strdup(&m->arena, text);
	e->path = path;
	e->npath = 2;
	e->error = "metadata.pkl gives it a path that is not a list of names and numbers";
	return path[1] ? 0 : -ENOMEM;
}

static int read_path(struct dcp_items_meta *m, const char *text, struct dcp_items_entry *e)
{
	dcp_auto_json struct dcp_json *list = NULL;
	int rc = dcp_json_parse(text, strlen(text), &list, NULL);

	if (rc == 0)
		rc = dcp_json_is_array(list) ? split_path(m, list, e) : -EBADMSG;
	return rc == 0 || rc == -ENOMEM ? rc : keep_text(m, text, e);
}

/* Add @e, whose whole path is known, under its key. */
static int add_entry(struct dcp_items_meta *m, struct dcp_items_entry *e)
{
	uint32_t number;
	int rc;

	dcp_buf_reset(&m->scratch);
	dcp_path_join(&m->scratch, e->path, e->npath);
	rc = dcp_buf_error(&m->scratch);
	if (rc == 0)
		rc = dcp_intern_add(&m->keys, m->scratch.p, m->scratch.n, DCP_INTERN_NONE,
				    &number);
	if (rc == 0)
		dcp_items_entries(m)[number].error =
			"metadata.pkl has two paths that are this key when joined with dots";
	if (rc != 1)
		return rc;
	e->key = dcp_arena_strndup(&m->arena, m->scratch.p, m->scratch.n);
	dcp_buf_add(&m->entries, e, sizeof(*e));
	return e->key ? dcp_buf_error(&m->entries) : -ENOMEM;
}

/* Make the name of item @number the first component of @e, and add @e. */
static int give_item(struct dcp_items_meta *m, struct dcp_items_entry *e, uint32_t number)
{
	((const char **)(uintptr_t)e->path)[0] = dcp_items_items(m)[number].name;
	e->item = number;
	return add_entry(m, e);
}

/* Add an entry of version 1.0, whose path begins with the item. */
static int add_flat(struct dcp_items_meta *m, struct dcp_items_entry *e, uint32_t unused)
{
	const char *name = e->npath > 1 ? e->path[1] : "";
	int rc = dcp_items_get_item(m, name, &e->item);

	if (rc < 0)
		return rc;
	e->path++;
	e->npath -= e->npath > 1;
	return add_entry(m, e);
}

static int read_pair(struct dcp_items_meta *m, struct dcp_pv path, struct dcp_pv groups,
		     struct dcp_items_entry *e, struct dcp_err *err)
{
	const char *text = dcp_pv_str(path);
	int rc = dcp_items_work(m, text ? path.node->n : 0, err);

	*e = (struct dcp_items_entry){ 0 };
	if (rc < 0)
		return rc;
	rc = text ? read_path(m, text, e) : keep_text(m, "(not a str)", e);
	return rc < 0 ? -ENOMEM : dcp_items_read_groups(m, groups, &e->first, err);
}

static int add_pairs(struct dcp_items_meta *m, const struct dcp_pv *kv, size_t npairs,
		     int (*add)(struct dcp_items_meta *m, struct dcp_items_entry *e,
				uint32_t item),
		     uint32_t item, struct dcp_err *err)
{
	for (size_t i = 0; i < npairs; i++) {
		struct dcp_items_entry e;
		int rc = read_pair(m, kv[2 * i], kv[2 * i + 1], &e, err);

		if (rc < 0)
			return rc;
		if (add(m, &e, item) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int add_later(struct dcp_items_meta *m, struct dcp_items_entry *e, uint32_t unused)
{
	return dcp_buf_add(&m->pending, e, sizeof(*e));
}

static bool is_list(struct dcp_pv v)
{
	return v.type == DCP_PV_LIST || v.type == DCP_PV_TUPLE;
}

static bool are_lists(const struct dcp_pv *kv, size_t npairs)
{
	for (size_t i = 0; i < npairs; i++)
		if (!is_list(kv[2 * i + 1]))
			return false;
	return npairs > 0;
}

/* If the pairs of dict @where hold "nested_path_to_metadata", the pending entries belong to the
 * item of that name: add them. */
static int settle_pending(struct dcp_items_meta *m, struct dcp_pv where,
			  const struct dcp_pv *kv, size_t npairs)
{
	size_t n = DCP_NITEMS(m->pending, struct dcp_items_entry);
	const char *name = dcp_pv_str(where);
	bool mine = false;
	uint32_t item;

	for (size_t i = 0; i < npairs; i++)
		mine |= dcp_pv_is_str(kv[2 * i], nested);
	if (!mine || !name || n == 0)
		return 0;
	if (dcp_items_get_item(m, name, &item) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (give_item(m, DCP_ITEMS(m->pending, struct dcp_items_entry) + i, item) < 0)
			return -ENOMEM;
	dcp_buf_reset(&m->pending);
	return 0;
}

static int on_pairs(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		    size_t npairs, struct dcp_err *err)
{
	struct dcp_items_meta *m = ctx;
	bool flat = dcp_pv_is_str(where, "metadata");
	int rc;

	if ((!flat && !dcp_pv_is_str(where, nested)) || !are_lists(kv, npairs))
		return settle_pending(m, where, kv, npairs);
	rc = add_pairs(m, kv, npairs, flat ? add_flat : add_later, 0, err);
	return rc < 0 ? rc : 1;
}

static int read_item(struct dcp_items_meta *m, struct dcp_pv name, struct dcp_pv v,
		     struct dcp_err *err)
{
	size_t n;
	const struct dcp_pv *kv = dcp_pv_pairs(dcp_pv_at(v, nested), &n), *layouts;
	uint32_t number;
	int rc;

	if (!dcp_pv_str(name) || v.type != DCP_PV_DICT)
		return dcp_fail(err, -EBADMSG, "its entry of item %.60s is not a dict",
				dcp_pv_str(name) ? dcp_pv_str(name) : "(not a str)");
	if (dcp_items_get_item(m, dcp_pv_str(name), &number) < 0)
		return -ENOMEM;
	rc = add_pairs(m, kv, n, give_item, number, err);
	layouts = dcp_pv_get(v, "rank_to_layout_info");
	return rc < 0 || !layouts ? rc : dcp_items_read_layouts(m, number, *layouts, err);
}

static int read_root(struct dcp_items_meta *m, struct dcp_pv root, struct dcp_err *err)
{
	const struct dcp_pv *items = dcp_pv_get(root, "metadata"), *kv;
	const struct dcp_pv *world = dcp_pv_get(root, "world_size");
	char type[128];
	int rc = 0;
	size_t n;

	if (root.type != DCP_PV_DICT || !items || items->type != DCP_PV_DICT || !world)
		return dcp_fail_at(
			err, -EBADMSG, 0,
			"the pickle holds %s, expected torch_checkpointing's dict with "
			"\"metadata\" and \"world_size\"",
			dcp_torch_field_type(root, type, sizeof(type)));
	if (!dcp_pv_u64(*world, &m->world) || !m->world || m->world > DCP_ITEMS_MAX_RANKS)
		return dcp_fail(err, -EBADMSG, "world_size is not a number from 1 to %u",
				DCP_ITEMS_MAX_RANKS);
	dcp_sections_fact(m->version, sizeof(m->version), dcp_pv_at(root, "version"));
	kv = dcp_pv_pairs(*items, &n);
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = is_list(kv[2 * i + 1]) ? add_pairs(m, &kv[2 * i], 1, add_flat, 0, err)
					    : read_item(m, kv[2 * i], kv[2 * i + 1], err);
	return rc < 0 ? rc : dcp_items_read_flat_layouts(m, root, err);
}

int dcp_items_meta_read(struct dcp_items_meta *m, const struct dcp_source *src,
			struct dcp_err *err)
{
	const struct dcp_pickle_hook hook = { on_pairs, m };
	const struct dcp_pickle_opts opts = { .hook = &hook };
	struct dcp_pickle *pickle;
	int rc;

	*m = (struct dcp_items_meta){ 0 };
	dcp_arena_init(&m->arena, arena_limit);
	if (dcp_ckd_mul(&m->work_limit, src->size, WORK_PER_BYTE) ||
	    dcp_ckd_add(&m->work_limit, m->work_limit, WORK_AT_LEAST))
		m->work_limit = UINT64_MAX;
	rc = dcp_pickle_read(src, &opts, &pickle, NULL, err);
	if (rc < 0)
		return rc;
	rc = read_root(m, dcp_pickle_root(pickle), err);
	dcp_pickle_free(pickle);
	if (rc == 0 && m->pending.n)
		rc = dcp_fail(err, -EBADMSG, "it describes tensors that are part of no item");
	return rc;
}
