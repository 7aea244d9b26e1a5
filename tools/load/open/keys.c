/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a checkpoint, and reading one region without other ranks. */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/model/geometry/strided.h"
#include "core/model/name.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"
#include "tools/load/load.h"

/* ---- one ---- */

void load_tensor_of(const struct dcp_row *row, struct dcpload_tensor *out)
{
	uint64_t n = 1;

	out->key = row->key;
	out->dtype = dcp_dtype_info(row->dtype)->name;
	out->ndim = row->ndim;
	out->nbytes = row->nbytes;
	memcpy(out->shape, row->shape, row->ndim * sizeof(*out->shape));
	for (uint32_t d = 0; d < row->ndim; d++)
		n *= row->shape[d];
	out->itemsize = dcp_dtype_info(row->dtype)->size;
	if (out->itemsize == 0 && n)
		out->itemsize = (uint32_t)(row->nbytes / n);
}

int load_find(struct dcpload *ck, const char *key, struct dcp_arena *arena, struct dcp_row *row,
	      struct dcp_err *err)
{
	enum dcp_row_kind kind;

	return dcp_err_say(
		err, dcp_checkpoint_key(&ck->of, DCP_TENSOR_KEY, key, arena, &kind, row, err));
}

/* As load_find(). */
static int find_object_row(struct dcpload *ck, const char *key, struct dcp_row *row,
			   struct dcp_err *err)
{
	enum dcp_row_kind kind;

	dcp_arena_reset(&ck->answer);
	return dcp_err_say(err, dcp_checkpoint_key(&ck->of, DCP_OBJECT_KEY, key, &ck->answer,
						   &kind, row, err));
}

int dcpload_tensor(struct dcpload *ck, const char *key, struct dcpload_tensor *out,
		   struct dcpload_error *err)
{
	struct dcp_err own = { 0 };
	struct dcp_tensor t;
	struct dcp_row row;
	int rc;

	dcp_arena_reset(&ck->answer);
	rc = load_find(ck, key, &ck->answer, &row, &own);
	if (rc == 0)
		rc = dcp_index_tensor(dcp_version_index(ck->of.v), row.id, &ck->answer, &t,
				      &own);
	if (rc == 0 && t.error && !t.partly)
		rc = dcp_fail(&own, -EBADMSG, "%s: %s", key, t.error);
	if (rc < 0)
		return load_fail_err(err, rc, &own);
	load_tensor_of(&row, out);
	out->dtype = t.dtype_name;
	out->itemsize = t.itemsize;
	return 0;
}

static int find_object(struct dcpload *ck, const char *key, struct dcp_object *o,
		       struct dcp_err *err)
{
	struct dcp_row row;
	int rc = find_object_row(ck, key, &row, err);

	return rc < 0 ? rc
		      : dcp_index_object(dcp_version_index(ck->of.v), row.id, &ck->answer, o,
					 err);
}

int dcpload_object(struct dcpload *ck, const char *key, const char **type, const char **json,
		   size_t *n, struct dcpload_error *err)
{
	struct dcp_err own = { 0 };
	struct dcp_object o;
	int rc = find_object(ck, key, &o, &own);

	if (rc == 0 && !o.json)
		rc = dcp_fail(&own, -EBADMSG, "%s: %s", key,
			      o.error ? o.error : "it cannot be decoded");
	if (rc < 0)
		return load_fail_err(err, rc, &own);
	*json = dcp_arena_strndup(&ck->answer, o.json, o.json_len);
	*n = o.json_len;
	if (type)
		*type = o.type;
	return *json ? 0 : load_fail(err, -ENOMEM, "out of memory");
}

int dcpload_classes(struct dcpload *ck, const char *key, const char **classes,
		    struct dcpload_error *err)
{
	struct dcp_err own = { 0 };
	struct dcp_object o;
	int rc = find_object(ck, key, &o, &own);

	if (rc < 0)
		return load_fail_err(err, rc, &own);
	*classes = o.classes;
	return 0;
}

int load_open_object(struct dcpload *ck, const char *key, struct dcp_view **out,
		     struct dcp_err *err)
{
	struct dcp_row row;
	int rc = find_object_row(ck, key, &row, err);

	return rc < 0 ? rc : dcp_view_open_object(ck->of.v, row.id, out, err);
}

int dcpload_object_size(struct dcpload *ck, const char *key, uint64_t *n,
			struct dcpload_error *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_err own = { 0 };
	int rc = load_open_object(ck, key, &view, &own);

	if (rc == 0)
		*n = dcp_view_size(view);
	return load_fail_err(err, rc, &own);
}

int dcpload_object_read(struct dcpload *ck, const char *key, uint64_t at, void *dst, uint64_t n,
			struct dcpload_error *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_err own = { 0 };
	int rc = load_open_object(ck, key, &view, &own);

	if (rc == 0 && !dcp_range_ok(at, n, dcp_view_size(view)))
		rc = dcp_fail(&own, -EINVAL,
			      "%s: the object has %llu bytes; %llu from %llu on are not in it",
			      key, (unsigned long long)dcp_view_size(view),
			      (unsigned long long)n, (unsigned long long)at);
	if (rc == 0 && n)
		rc = dcp_view_read(view, at, dst, n);
	if (rc < 0 && !own.msg[0])
		dcp_fail(&own, rc, "%s: %s", key, strerror(-rc));
	return load_fail_err(err, rc, &own);
}

/* Find the object, or else the tensor, of a key: one of the two is filled, in memory of ck->answer.
 * Returns as load_find(). */
static int find_either(struct dcpload *ck, const char *key, struct dcp_object *o,
		       struct dcp_tensor *t, struct dcp_err *err)
{
	struct dcp_index *ix = dcp_version_index(ck->of.v);
	struct dcp_row row;
	int rc;

	dcp_arena_reset(&ck->answer);
	rc = dcp_index_by_key(ix, DCP_ROW_OBJECT, key, &ck->answer, &row);
	if (rc == 0)
		return dcp_index_object(ix, row.id, &ck->answer, o, err);
	if (rc == -ENOENT)
		rc = load_find(ck, key, &ck->answer, &row, err);
	return rc < 0 ? rc : dcp_index_tensor(ix, row.id, &ck->answer, t, err);
}

int dcpload_path(struct dcpload *ck, const char *key, const char *const **path, size_t *n,
		 struct dcpload_error *err)
{
	struct dcp_err own = { 0 };
	struct dcp_tensor t = { 0 };
	struct dcp_object o = { 0 };
	int rc = find_either(ck, key, &o, &t, &own);

	if (rc < 0)
		return load_fail_err(err, rc, &own);
	*path = o.path ? o.path : t.path;
	*n = o.path ? o.npath : t.npath;
	return 0;
}

int dcpload_pieces(struct dcpload *ck, const char *key, const struct dcpload_piece **out,
		   size_t *n, struct dcpload_error *err)
{
	struct dcp_err own = { 0 };
	struct dcp_tensor t = { 0 };
	struct dcp_object o = { 0 };
	const struct dcp_file_id *files;
	struct dcpload_piece *piece;
	size_t nfiles;
	int rc = find_either(ck, key, &o, &t, &own);

	if (rc < 0)
		return load_fail_err(err, rc, &own);
	files = dcp_index_files(dcp_version_index(ck->of.v), &nfiles);
	piece = dcp_arena_calloc(&ck->answer, t.npieces + 1, sizeof(*piece));
	if (!piece)
		return load_fail(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < t.npieces; i++)
		piece[i] = (struct dcpload_piece){ files[t.pieces[i].file].name, t.pieces[i].lo,
						   t.pieces[i].len };
	if (o.stored)
		piece->file = files[o.stored->file].name;
	*out = piece;
	*n = o.stored ? 1 : t.npieces;
	return 0;
}

/* ---- all ---- */

/* Find the first row of @kind after number *next; @entry: only rows that are entries of torch's
 * metadata. 1 or 0. */
static int next_row(struct dcpload *ck, enum dcp_row_kind kind, bool entry, uint64_t *next,
		    struct dcp_row *row)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	int rc =
		dcp_index_scan(dcp_version_index(ck->of.v), kind, (int64_t)*next, false, &scan);

	if (rc < 0)
		return rc;
	dcp_arena_reset(&ck->answer);
	do
		rc = dcp_index_scan_next(scan, row);
	while (rc > 0 && entry && !row->entry);
	if (rc > 0) {
		*next = (uint64_t)row->id;
		row->key = dcp_arena_strdup(&ck->answer, row->key);
		rc = row->key ? 1 : -ENOMEM;
	}
	return rc;
}

int dcpload_next_tensor(struct dcpload *ck, uint64_t *next, struct dcpload_tensor *out,
			struct dcpload_error *err)
{
	struct dcp_row row;
	int rc = next_row(ck, DCP_ROW_TENSOR, false, next, &row);

	if (rc > 0)
		load_tensor_of(&row, out);
	return rc < 0 ? load_fail_err(err, rc, NULL) : rc;
}

int dcpload_next_object(struct dcpload *ck, uint64_t *next, const char **key,
			struct dcpload_error *err)
{
	struct dcp_row row;
	int rc = next_row(ck, DCP_ROW_OBJECT, false, next, &row);

	if (rc > 0)
		*key = row.key;
	return rc < 0 ? load_fail_err(err, rc, NULL) : rc;
}

/* Read the row of an object that is shown in another form. */
static int item_of(struct dcpload *ck, int64_t id, struct dcpload_entry *out,
		   struct dcp_err *err)
{
	struct dcp_object o;
	int rc = dcp_index_item(dcp_version_index(ck->of.v), id, &ck->answer, &o, err);

	if (rc < 0)
		return rc;
	out->path = o.path;
	out->npath = (uint32_t)o.npath;
	out->type = o.type;
	out->json = o.json;
	out->classes = o.classes;
	out->why = o.error;
	return 1;
}

int dcpload_next_entry(struct dcpload *ck, uint64_t *next, struct dcpload_entry *out,
		       struct dcpload_error *err)
{
	uint64_t kind = *next >> 32, at = *next & UINT32_MAX; /* ids are less than 2^31 */
	struct dcp_err own = { 0 };
	struct dcp_row row;
	int rc = 0;

	for (; kind <= DCP_ROW_ITEM; kind++, at = 0) {
		rc = next_row(ck, (enum dcp_row_kind)kind, true, &at, &row);
		if (rc != 0)
			break;
	}
	if (rc > 0) {
		*next = kind << 32 | at;
		*out = (struct dcpload_entry){ .key = row.key,
					       .is_object = kind != DCP_ROW_TENSOR };
		if (kind == DCP_ROW_ITEM)
			rc = item_of(ck, row.id, out, &own);
	}
	return rc < 0 ? load_fail_err(err, rc, &own) : rc;
}

/* ---- selecting ---- */

enum { SELECT_MEMORY = 64 << 20 }; /* of one tensor */

/* Is @word the component @s, or the part of @s before its first dot or slash? Some frameworks nest
 * in this way. */
static bool is_word(const char *s, const char *word)
{
	size_t n = strlen(word);

	return strncmp(s, word, n) == 0 && (s[n] == '\0' || s[n] == '/' || s[n] == '.');
}

/* Is @s a common name of something other than the model? */
static bool is_state(const char *s)
{
	static const char *const words[] = {
		"optim",
		"optimizer",
		"optimizers",
		"optimizer_states",
		"optimizer_state",
		"optimizer_state_dict",
		"scheduler",
		"schedulers",
		"lr_scheduler",
		"lr_schedulers",
		"rng",
		"rng_state",
		"rng_states",
		"opt_param_scheduler",
		"train_state",
		"dataloader",
		"scaler",
		"grad_scaler",
	};

	for (size_t i = 0; i < DCP_LEN(words); i++)
		if (is_word(s, words[i]))
			return true;
	return false;
}

static bool is_weight(const struct dcp_version *v, const struct dcp_tensor *t)
{
	const char *format = dcp_index_meta(dcp_version_index(v), "format");

	if (t->npath == 0)
		return true;
	if (strcmp(t->path[0], "state") == 0 &&
	    t->npath > 1) /* a key of Composer, in a checkpoint of any format */
		return strcmp(t->path[1], "model") == 0;
	if (format && strncmp(format, "deepspeed", 9) == 0)
		return strcmp(t->path[0], "module") == 0 || strcmp(t->path[0], "fp32") == 0;
	return !is_state(t->path[0]) && !(t->npath > 1 && is_state(t->path[1]));
}

/* Is @t a tensor inside an object (in a tuple) whose path is one of the first @n leading parts of
 * the path of @t? @key: scratch. */
static bool in_object(const struct dcp_version *v, const struct dcp_tensor *t, size_t n,
		      struct dcp_buf *key)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(SELECT_MEMORY);
	struct dcp_row row;

	dcp_buf_reset(key);
	for (size_t i = 0; i < n; i++) {
		dcp_buf_printf(key, "%s%s", i ? "." : "", t->path[i]);
		if (!key->failed && dcp_index_by_key(dcp_version_index(v), DCP_ROW_OBJECT,
						     key->p, &arena, &row) == 0)
			return true;
	}
	return false;
}

/* Does @glob match the path of @t or a leading part of it? Tensors inside an object have no path of
 * their own. @path: scratch. */
static bool is_ignored(const struct dcp_version *v, const char *glob,
		       const struct dcp_tensor *t, struct dcp_buf *path)
{
	dcp_buf_reset(path);
	for (size_t i = 0; i < t->npath; i++) {
		dcp_buf_printf(path, "%s%s", i ? "/" : "", t->path[i]);
		if (!path->failed && fnmatch(glob, path->p, FNM_NOESCAPE) == 0)
			return !in_object(v, t, i, path);
	}
	return false;
}

int load_selects(const struct dcp_version *v, const struct dcpload_select *select,
		 const struct dcp_row *row)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(SELECT_MEMORY);
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;
	struct dcp_tensor t;
	bool selected;
	int rc;

	if (!select)
		return 1;
	selected = (!select->nkeys || dcp_name_listed(select->keys, select->nkeys, row->key)) &&
		   !dcp_name_listed(select->skip, select->nskip, row->key);
	if (!selected || (!select->nignore && !select->weights_only))
		return selected;
	rc = dcp_index_tensor(dcp_version_index(v), row->id, &arena, &t, NULL);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < select->nignore; i++) {
		bool named = is_ignored(v, select->ignore[i], &t, &path);

		selected &= !named;
		if (select->ignored)
			select->ignored[i] += named;
	}
	if (dcp_buf_error(&path) < 0)
		return -ENOMEM;
	return selected && (!select->weights_only || is_weight(v, &t));
}

/* ---- reading a region ---- */

/* One span for step 1, otherwise one for each element. */
static int make_axis(struct dcp_axis *axis, uint64_t lo, uint64_t len, uint64_t step,
		     struct dcp_arena *arena)
{
	uint64_t n = len ? (len - 1) / step + 1 : 0;
	size_t nspan = step == 1 ? len != 0 : n;
	struct dcp_span *span = dcp_arena_calloc(arena, nspan + 1, sizeof(*span));

	if (!span)
		return -ENOMEM;
	for (size_t i = 0; i < nspan; i++)
		span[i] = step == 1 ? (struct dcp_span){ 0, lo, len }
				    : (struct dcp_span){ i, lo + i * step, 1 };
	*axis = (struct dcp_axis){ .span = span, .n = nspan, .len = n };
	return 0;
}

static int make_cut(struct dcp_cut *cut, const struct dcp_row *row, const uint64_t *lo,
		    const uint64_t *len, const uint64_t *step, struct dcp_arena *arena,
		    struct dcp_err *err)
{
	struct dcp_axis *axis;
	int rc = 0;

	if (!lo)
		return dcp_cut_whole(cut, row->ndim, row->shape, arena);
	axis = dcp_arena_calloc(arena, row->ndim + 1, sizeof(*axis));
	if (!axis)
		return -ENOMEM;
	for (uint32_t d = 0; d < row->ndim && rc == 0; d++) {
		uint64_t by = step ? step[d] : 1;

		if (by == 0 || lo[d] > row->shape[d] || len[d] > row->shape[d] - lo[d])
			return dcp_fail(
				err, -EINVAL,
				"%s: dimension %u has %llu elements; %llu from %llu on are "
				"not inside",
				row->key, d, (unsigned long long)row->shape[d],
				(unsigned long long)len[d], (unsigned long long)lo[d]);
		rc = make_axis(&axis[d], lo[d], len[d], by, arena);
	}
	*cut = (struct dcp_cut){ .ndim = row->ndim, .axis = axis };
	return rc;
}

int dcpload_read(struct dcpload *ck, const char *key, const uint64_t *lo, const uint64_t *len,
		 const uint64_t *step, void *dst, uint64_t n, struct dcpload_error *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_err own = { 0 };
	struct dcp_cut cut;
	struct dcp_row row;
	int rc;

	dcp_arena_reset(&ck->answer);
	rc = load_find(ck, key, &ck->answer, &row, &own);
	if (rc == 0)
		rc = make_cut(&cut, &row, lo, len, step, &ck->answer, &own);
	if (rc == 0)
		rc = dcp_view_open(ck->of.v, row.id, DCP_AS_RAW, lo ? &cut : NULL, &view, &own);
	if (rc == 0 && dcp_view_size(view) != n)
		rc = dcp_fail(&own, -EINVAL, "%s: the region has %llu bytes, the buffer %llu",
			      key, (unsigned long long)dcp_view_size(view),
			      (unsigned long long)n);
	if (rc == 0 && n)
		rc = dcp_view_read(view, 0, dst, n);
	if (rc < 0 && !own.msg[0])
		dcp_fail(&own, rc, "%s: %s", key, strerror(-rc));
	return load_fail_err(err, rc, &own);
}

/* ---- for mappings ---- */

struct whole {
	uint64_t runs, n, off;
	uint32_t file;
};

static int note_run(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	struct whole *w = ctx;

	w->runs++;
	w->n = s->piece->swap || file == DCP_VIEW_NO_FILE ? 0 : s->run;
	w->off = s->off;
	w->file = file;
	return 0;
}

static int open_again(struct dcp_files *files, uint32_t number, int *fd, struct dcp_err *err)
{
	const struct dcp_file *f;
	int rc;

	if (dcp_files_unpacked(files, number))
		return -ENOTSUP;
	rc = dcp_files_hold(files, number, true, &f, err);
	if (rc < 0)
		return rc;
	rc = dcp_files_check(files, number, false);
	*fd = rc < 0 ? -1 : fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
	if (rc == 0 && *fd < 0)
		rc = -errno;
	dcp_files_release(files, number);
	return rc;
}

int dcpload_run(struct dcpload *ck, const char *key, int *fd, uint64_t *offset,
		struct dcpload_error *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_err own = { 0 };
	struct whole whole = { 0 };
	struct dcp_row row;
	int rc;

	dcp_arena_reset(&ck->answer);
	rc = load_find(ck, key, &ck->answer, &row, &own);
	if (rc == 0)
		rc = dcp_view_open(ck->of.v, row.id, DCP_AS_RAW, NULL, &view, &own);
	if (rc == 0)
		rc = dcp_view_strided(view, note_run, &whole);
	if (rc == 0 && (whole.runs != 1 || whole.n != row.nbytes))
		rc = -ENOTSUP;
	if (rc == 0)
		rc = open_again(dcp_view_files(view), whole.file, fd, &own);
	*offset = whole.off;
	if (rc < 0 && !own.msg[0])
		dcp_fail(&own, rc, "%s: %s", key,
			 rc == -ENOTSUP ? "it is not stored as consecutive bytes of one file"
					: strerror(-rc));
	return load_fail_err(err, rc, &own);
}
