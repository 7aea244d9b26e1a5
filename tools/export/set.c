/* SPDX-License-Identifier: Apache-2.0 */
/* The set to write: tensors, objects and files of a version that are asked for and that the format
 * can hold. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/hf/hf.h"
#include "core/model/layout/layout.h"
#include "core/model/name.h"
#include "core/parse/json.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"
#include "tools/export/export.h"

#define CONFIG "config.json"

const char *const export_dtypes[] = {
	"stored", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", NULL
};

const char *const export_protocols[] = { "2", "3", "4", NULL };
const char *const export_comms[] = { "auto", "alone", "mpi", "env", NULL };

unsigned export_protocol(const struct export_opts *o)
{
	return o->protocol < 0 ? 0 : (unsigned)o->protocol + 2;
}

static const char *copy_text(struct exporting *x, const char *s)
{
	return dcp_arena_strdup(&x->arena, s);
}

static int note_left(struct exporting *x, struct dcp_buf *list, const char *what,
		     const char *key, const char *why)
{
	struct out_left l = { what, copy_text(x, key), copy_text(x, why) };

	dcp_buf_add(list, &l, sizeof(l));
	return l.key && l.why ? dcp_buf_error(list) : -ENOMEM;
}

static int leave_out(struct exporting *x, const char *what, const char *key, const char *why)
{
	return note_left(x, &x->left, what, key, why);
}

/* Leave out an unreadable item, which is an error without --partial. */
static int leave_damaged(struct exporting *x, const char *what, const char *key,
			 const char *why)
{
	int rc = leave_out(x, what, key, why);

	if (rc == 0 && x->ndamaged++ == 0)
		x->damaged = DCP_ITEMS(
			x->left, struct out_left)[DCP_NITEMS(x->left, struct out_left) - 1];
	return rc;
}

static int refuse_damaged(struct exporting *x)
{
	const struct out_left *l = &x->damaged;
	char more[64] = "", n[32];

	if (!x->ndamaged || x->opts->partial)
		return 0;
	if (x->ndamaged > 1)
		snprintf(more, sizeof(more), " (and %s more)", out_count(n, x->ndamaged - 1));
	return dcp_fail(&x->err, dcp_version_barred(x->pick.ck.v) ? -EACCES : -EBADMSG,
			"%s cannot be read: %s%s; --partial writes the rest", l->key, l->why,
			more);
}

static bool is_wanted(const struct exporting *x, const char *key)
{
	const struct export_opts *o = x->opts;

	return (!o->keys.n || dcp_name_listed(o->keys.v, o->keys.n, key)) &&
	       !dcp_name_listed(o->skip.v, o->skip.n, key);
}

static int copy_path(struct exporting *x, const char *const *path, size_t n,
		     const char *const **out)
{
	const char **to = dcp_arena_calloc(&x->arena, n + 1, sizeof(*to));

	for (size_t i = 0; to && i < n; i++) {
		to[i] = copy_text(x, path[i]);
		if (!to[i])
			return -ENOMEM;
	}
	*out = to;
	return to ? 0 : -ENOMEM;
}

struct seeking {
	const struct exporting *x;
	const char *word; /* NULL: any item that is asked for */
};

static int seek_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	const struct seeking *s = ctx;

	return s->word ? dcp_name_listed(&s->word, 1, row->key) : is_wanted(s->x, row->key);
}

static bool has_row(struct exporting *x, const char *word)
{
	struct seeking s = { x, word };

	return dcp_all_rows(dcp_version_index(x->pick.ck.v), seek_row, &s) != 0;
}

enum cmd_exit export_check_keys(struct exporting *x)
{
	const struct export_opts *o = x->opts;

	for (size_t i = 0; i < o->keys.n; i++)
		if (!has_row(x, o->keys.v[i]))
			return pick_no_key(&x->pick, o->keys.v[i]);
	if ((o->keys.n || o->skip.n) && !has_row(x, NULL))
		return cmd_fail(CMD_NO,
				"nothing of %s is left to write: --skip excludes everything",
				x->pick.ck.name);
	return CMD_OK;
}

/* ---- tensors ---- */

/* The dtype to convert to; @dtype itself where that is impossible. */
static enum dcp_dtype dtype_of(const struct exporting *x, enum dcp_dtype from)
{
	enum dcp_dtype to = x->opts->dtype ? dcp_dtype_from_name(export_dtypes[x->opts->dtype])
					   : DCP_DTYPE_OTHER;

	return to != DCP_DTYPE_OTHER && to != from && dcp_dtype_can_cast(from, to) ? to : from;
}

/* Rows come in the order of their ids. */
static size_t find_row(const struct exporting *x, int64_t id)
{
	const struct export_from *from = DCP_ITEMS(x->from, struct export_from);
	size_t i, n = DCP_NITEMS(x->from, struct export_from);

	DCP_BISECT(i, 0, n, from[i].row < id);
	return i < n && from[i].row == id ? i : DCP_WRITE_ALONE;
}

/* Add the whole tensor, as written by rank 0. */
static int add_whole(struct exporting *x, struct dcp_write_tensor *t)
{
	struct dcp_write_part *part = dcp_arena_calloc(&x->arena, 1, sizeof(*part));
	uint64_t *lo = dcp_arena_calloc(&x->arena, t->ndim + 1, sizeof(*lo));

	if (!part || !lo)
		return -ENOMEM;
	*part = (struct dcp_write_part){ .ndim = t->ndim, .lo = lo, .shape = t->shape };
	t->parts = part;
	t->nparts = 1;
	return 0;
}

/* Codes of quantized numbers are not converted without their scales. */
static int check_number(struct exporting *x, const struct dcp_row *row)
{
	const char *by = dtype_of(x, row->dtype) != row->dtype
				 ? dcp_quantized_row(x->quantized, row)
				 : NULL;

	return by ? dcp_quantized_refuse(row, by, &x->err) : 0;
}

static int add_tensor(struct exporting *x, const struct dcp_row *row,
		      const struct dcp_tensor *t)
{
	struct export_from from = { .row = row->id, .dtype = row->dtype };
	struct dcp_write_tensor out = { .key = copy_text(x, row->key),
					.dtype = dtype_of(x, row->dtype),
					.ndim = row->ndim,
					.path = t->path,
					.npath = t->npath,
					.same_as = DCP_WRITE_ALONE };
	uint64_t *shape = dcp_arena_calloc(&x->arena, row->ndim + 1, sizeof(*shape));
	const char *why;
	int rc;

	rc = check_number(x, row);
	if (rc < 0)
		return rc;
	if (!out.key || !shape)
		return -ENOMEM;
	memcpy(shape, row->shape, row->ndim * sizeof(*shape));
	out.shape = shape;
	out.itemsize = out.dtype == row->dtype ? dcp_tensor_shown_size(t)
					       : dcp_dtype_info(out.dtype)->size;
	why = x->format->refuses ? x->format->refuses(&out) : NULL;
	if (why)
		return leave_out(x, "tensor", row->key, why);
	if (row->alias_of)
		out.same_as = find_row(x, row->alias_of);
	if (x->local) {
		rc = export_local(x, &out, &from.cut, &why);
		if (rc <= 0 || why)
			return rc <= 0 ? rc : leave_out(x, "tensor", row->key, why);
	}
	rc = copy_path(x, t->path, t->npath, &out.path);
	if (rc == 0)
		rc = (row->nbytes || x->format->takes & DCP_WRITE_ARRAYS) && x->layout &&
				     !x->local
			     ? export_parts(x, &out, &why)
			     : add_whole(x, &out);
	if (rc == 0 && why)
		return leave_out(x, "tensor", row->key, why);
	if (rc < 0)
		return rc;
	dcp_buf_add(&x->tensors, &out, sizeof(out));
	dcp_buf_add(&x->from, &from, sizeof(from));
	return dcp_buf_error(&x->tensors) | dcp_buf_error(&x->from);
}

static int see_tensor(struct exporting *x, const struct dcp_row *row, struct dcp_arena *arena)
{
	struct dcp_tensor t;
	int rc;

	if (dcp_hf_is_tied(x->pick.ck.v, row->id))
		return leave_out(x, "tensor", row->key, "it is tied to another");
	rc = dcp_index_tensor(dcp_version_index(x->pick.ck.v), row->id, arena, &t, &x->err);
	if (rc == 0)
		rc = t.error ? leave_damaged(x, "tensor", row->key, t.error)
			     : add_tensor(x, row, &t);
	return rc;
}

/* ---- objects ---- */

static int add_object(struct exporting *x, const struct dcp_object *o)
{
	struct dcp_object out = *o;
	const char *why = x->format->refuses_object ? x->format->refuses_object(o) : NULL;
	int rc;

	if (why)
		return leave_out(x, "object", o->key, why);
	out.key = copy_text(x, o->key);
	out.type = copy_text(x, o->type ? o->type : "");
	out.json = dcp_arena_strndup(&x->arena, o->json, o->json_len);
	out.classes = o->classes ? copy_text(x, o->classes) : NULL;
	rc = copy_path(x, o->path, o->npath, &out.path);
	if (rc < 0 || !out.key || !out.type || !out.json || (o->classes && !out.classes))
		return -ENOMEM;
	dcp_buf_add(&x->objects, &out, sizeof(out));
	why = x->format->asks ? x->format->asks(o) : NULL;
	rc = why ? note_left(x, &x->asks, "object", o->key, why) : 0;
	return rc | dcp_buf_error(&x->objects);
}

static int see_object(struct exporting *x, const struct dcp_row *row, struct dcp_arena *arena)
{
	struct dcp_row tensor;
	struct dcp_object o;
	int rc;

	if (x->local && x->layout && !dcp_layout_has_object(x->layout, x->comm->rank, row->key))
		return 0;
	if (!(x->format->takes & DCP_WRITE_OBJECTS) && !row->broken)
		return leave_out(x, "object", row->key, "the format holds tensors only");
	if (dcp_index_by_key(dcp_version_index(x->pick.ck.v), DCP_ROW_TENSOR, row->key, arena,
			     &tensor) == 0)
		return leave_out(x, "object", row->key, "a tensor has the same key");
	rc = dcp_index_object(dcp_version_index(x->pick.ck.v), row->id, arena, &o, &x->err);
	if (rc == 0)
		rc = o.json    ? add_object(x, &o)
		     : o.error ? leave_damaged(x, "object", row->key, o.error)
			       : leave_out(x, "object", row->key, "it has no JSON form");
	return rc;
}

static int see_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);

	if (!is_wanted(ctx, row->key))
		return 0;
	return kind == DCP_ROW_TENSOR ? see_tensor(ctx, row, &arena)
				      : see_object(ctx, row, &arena);
}

/* ---- files ---- */

static int add_extra(struct exporting *x, const char *name, uint64_t size, uint64_t number)
{
	struct dcp_write_extra e = { copy_text(x, name), size };

	dcp_buf_add(&x->extras, &e, sizeof(e));
	dcp_buf_add(&x->extra_from, &number, sizeof(number));
	return e.name ? dcp_buf_error(&x->extras) | dcp_buf_error(&x->extra_from) : -ENOMEM;
}

bool export_is_asset(const struct exporting *x)
{
	return dcp_hf_assets(x->pick.ck.v) != NULL;
}

/* Add a generated config.json, or that of an adapter. */
static int ask_config(struct exporting *x, const struct dcp_adapter *adapter, const char *name)
{
	char why[160] = "it is made from what the checkpoint keeps of its model; compare it";

	if (adapter || !dcp_hf_inferred(x->pick.ck.v))
		snprintf(why, sizeof(why),
			 "not found, and %s cannot load this%s without it; give the directory "
			 "that has it: --hf-assets DIR",
			 adapter ? adapter->loader : "transformers", adapter ? " adapter" : "");
	return note_left(x, &x->asks, "file", name, why);
}

/* Add the extra files that hf/ of a mount has: generated files, and files beside the weights. */
static int add_assets(struct exporting *x)
{
	struct dcp_version *v = x->pick.ck.v;
	const struct dcp_adapter *adapter = dcp_hf_adapter(v);
	const char *config = adapter ? adapter->config : CONFIG;
	struct dcp_hf_file f;
	int rc = 0;

	for (size_t i = 0; rc == 0 && dcp_hf_next_file(v, &i, &f);)
		rc = add_extra(x, f.name, f.size, i - 1);
	if (rc < 0 || !config ||
	    (dcp_hf_has_file(v, config) && (adapter || !dcp_hf_inferred(v))))
		return rc;
	return ask_config(x, adapter, config);
}

static int add_extras(struct exporting *x)
{
	size_t n = 0;
	const struct dcp_file_id *id = dcp_index_files(dcp_version_index(x->pick.ck.v), &n);
	int rc = 0;

	if (!(x->format->takes & DCP_WRITE_EXTRAS) || x->is_file)
		return 0;
	if (export_is_asset(x))
		return add_assets(x);
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (id[i].shown)
			rc = add_extra(x, id[i].name, id[i].size, i);
	return rc;
}

/* ---- metadata of files ---- */

/* Leave out the names of the fact "metadata" that the format cannot hold, except the name "format",
 * which concerns only the source. */
static int leave_metadata(struct exporting *x, const struct dcp_json *said)
{
	const struct dcp_json *value;
	const void *iter = NULL;
	const char *name;
	int rc = 0;

	while (rc == 0 && (iter = dcp_json_next(said, iter, &name, &value)))
		if (strcmp(name, "format") != 0)
			rc = leave_out(x, "name", name,
				       "__metadata__ of safetensors says it, and the format "
				       "has no place for that");
	return rc;
}

/* @list has the names whose values are not exported, and the reasons. */
static int note_lost(struct exporting *x, const struct dcp_json *list)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dcp_json_len(list); i++) {
		const struct dcp_json *lost = dcp_json_at(list, i);
		const char *name = dcp_json_str(dcp_json_get(lost, "name")),
			   *why = dcp_json_str(dcp_json_get(lost, "why"));

		rc = name && why ? note_left(x, &x->asks, "name", name, why) : 0;
	}
	return rc;
}

static int see_metadata(struct exporting *x)
{
	bool kept = x->format->takes & DCP_WRITE_METADATA;
	const char *text = dcp_index_meta(dcp_version_index(x->pick.ck.v),
					  kept ? "metadata_lost" : "metadata");
	dcp_auto_json struct dcp_json *json = NULL;
	int rc = text ? dcp_json_parse(text, strlen(text), &json, &x->err) : 0;

	if (rc < 0)
		return rc;
	return kept ? note_lost(x, json) : leave_metadata(x, json);
}

int export_choose(struct exporting *x)
{
	struct dcp_index *ix = dcp_version_index(x->pick.ck.v);
	int rc = x->opts->dtype ? dcp_quantized_find(x->pick.ck.v, x->pick.ck.base,
						     &x->quantized, &x->err)
				: 0;

	if (rc == 0)
		rc = dcp_all_rows(ix, see_row, x);
	if (rc == 0)
		rc = see_metadata(x);
	if (rc == 0)
		rc = refuse_damaged(x);
	if (rc == 0)
		rc = add_extras(x);
	x->set = (struct dcp_write_set){
		.tensors = DCP_ITEMS(x->tensors, struct dcp_write_tensor),
		.ntensors = DCP_NITEMS(x->tensors, struct dcp_write_tensor),
		.objects = DCP_ITEMS(x->objects, struct dcp_object),
		.nobjects = DCP_NITEMS(x->objects, struct dcp_object),
		.extras = DCP_ITEMS(x->extras, struct dcp_write_extra),
		.nextras = DCP_NITEMS(x->extras, struct dcp_write_extra),
		.ranks = x->layout && !x->local ? dcp_layout_ranks(x->layout) : 1,
		.arrays = x->layout && !x->local && !(x->format->takes & DCP_WRITE_BOXES) &&
			  dcp_layout_ranks(x->layout) > 1,
		.lists = dcp_index_meta(ix, "lists") != NULL,
	};
	return dcp_err_say(&x->err, rc);
}
