/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that an adapter emits becomes a row, even if it is wrong: a key that cannot be read is
 * listed with the reason. Only a failure of the index itself ends the build. */
#include "core/store/index/write/write_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/model/geometry/tiling.h"
#include "core/model/tensor.h"

/* "4,194,304" */
static const char *group_digits(uint64_t v, char out[32])
{
	char plain[24];
	int n = snprintf(plain, sizeof(plain), "%llu", (unsigned long long)v), k = 0;

	for (int i = 0; i < n; i++) {
		if (i && (n - i) % 3 == 0)
			out[k++] = ',';
		out[k++] = plain[i];
	}
	out[k] = '\0';
	return out;
}

/* Where a fault lies, for its message. */
struct place {
	const struct dcp_tensor *t;
	const struct dcp_piece *p;
	const char *file;
	struct dcp_err *err;
};

static int fail_cut(const struct place *at, uint64_t size)
{
	uint64_t end = at->p->off + at->p->nbytes;
	char has[32], wants[32], lo[32], hi[32];

	return dcp_fail_at(
		at->err, -ENODATA, at->p->off,
		"%.200s is %s bytes; metadata expects at least %s (bytes %s-%s, piece "
		"%zu of %zu): was the writer interrupted?",
		at->file, group_digits(size, has), group_digits(end, wants),
		group_digits(at->p->off, lo), group_digits(end - !!at->p->nbytes, hi),
		(size_t)(at->p - at->t->pieces) + 1, at->t->npieces);
}

static int fail_short(const struct place *at, uint64_t need)
{
	char has[32], wants[32];

	return dcp_fail_at(
		at->err, -EBADMSG, at->p->off,
		"%.200s: piece %zu of %zu has %s bytes at %llu; its elements take %s", at->file,
		(size_t)(at->p - at->t->pieces) + 1, at->t->npieces,
		group_digits(at->p->nbytes, has), (unsigned long long)at->p->off,
		group_digits(need, wants));
}

/* Compute the stored bytes from the first element of @p to the end of its last; false on
 * overflow. */
static bool count_span(const struct dcp_tensor *t, const struct dcp_piece *p, uint64_t *out)
{
	uint64_t n = 1, step;

	if (!p->stride)
		return !dcp_ckd_mul(out, p->run_n, t->itemsize);
	for (uint32_t d = 0; d < t->ndim; d++)
		if (dcp_ckd_mul(&step, p->len[d] - 1, p->stride[d]) || dcp_ckd_add(&n, n, step))
			return false;
	return !dcp_ckd_mul(out, n, t->itemsize);
}

/* The length of compressed bytes does not tell the decoded length, which is checked when they are
 * read. */
static int check_length(const struct place *at)
{
	const struct dcp_piece *p = at->p;
	uint64_t volume, need;

	if (p->stride && (!dcp_shape_volume(p->len, at->t->ndim, &volume) || p->run_lo ||
			  p->run_n != volume))
		return dcp_fail_at(
			at->err, -EBADMSG, p->off,
			"%.200s: piece %zu of %zu holds a part of its box with strides",
			at->file, (size_t)(p - at->t->pieces) + 1, at->t->npieces);
	if (p->item_n && (!count_span(at->t, p, &need) || !p->stride ||
			  !dcp_range_ok(p->item_lo, need / at->t->itemsize, p->item_n)))
		return dcp_fail_at(at->err, -EBADMSG, p->off,
				   "%.200s: piece %zu of %zu is not a part of its item",
				   at->file, (size_t)(p - at->t->pieces) + 1, at->t->npieces);
	if (p->filter == DCP_FILTER_SUM) {
		if (dcp_ckd_mul(&need, p->item_n ? p->item_n : p->run_n, at->t->itemsize) ||
		    p->nbytes != need)
			return fail_short(at, need);
	}
	if (dcp_filter_encodes(p->filter) || p->filter == DCP_FILTER_ZERO)
		return 0;
	if (p->enc != DCP_ENC_PLAIN) {
		if (dcp_ckd_mul(&need, p->item_n ? p->item_n : p->run_n, at->t->itemsize))
			need = UINT64_MAX;
	} else if (!count_span(at->t, p, &need)) {
		need = UINT64_MAX;
	}
	return p->nbytes < need ? fail_short(at, need) : 0;
}

/* Check where the piece itself lies, without the other terms of a sum. */
static int check_place(const struct dcp_tensor *t, const struct dcp_piece *p,
		       const struct dcp_index_seen *files, size_t n, struct dcp_err *err)
{
	struct place at = { .t = t, .p = p, .err = err };
	uint64_t size;
	int code;

	if (p->file >= n)
		return dcp_fail(err, -EBADMSG, "piece %zu of %zu names file %u of %zu",
				(size_t)(p - t->pieces) + 1, t->npieces, p->file, n);
	at.file = files[p->file].id.name;
	if (!dcp_range_ok(p->off, p->nbytes, INT64_MAX))
		return dcp_fail(err, -EBADMSG, "%.200s: piece %zu of %zu lies at %llu+%llu",
				at.file, (size_t)(p - t->pieces) + 1, t->npieces,
				(unsigned long long)p->off, (unsigned long long)p->nbytes);
	code = check_length(&at);
	if (code < 0)
		return code;
	if (files[p->file].error)
		return dcp_fail_at(err, -ENODATA, p->off, "%s", files[p->file].error);
	size = files[p->file].packed ? files[p->file].id.unpacked : files[p->file].id.size;
	return dcp_range_ok(p->off, p->nbytes, size) ? 0 : fail_cut(&at, size);
}

/* Check the other terms of a sum, each as if it were the piece. */
static int check_terms(const struct dcp_tensor *t, const struct dcp_piece *p,
		       const struct dcp_index_seen *files, size_t n, struct dcp_err *err)
{
	struct dcp_piece term = *p;
	struct dcp_tensor alone = *t;
	int code = 0;

	alone.pieces = &term;
	for (uint32_t i = 0; code == 0 && i < p->nmore; i++) {
		term.off = p->more[i].off;
		term.file = p->more[i].file;
		code = check_place(&alone, &term, files, n, err);
	}
	return code;
}

static int check_piece(const struct dcp_tensor *t, const struct dcp_piece *p,
		       const struct dcp_index_seen *files, size_t n, struct dcp_err *err)
{
	int code = check_place(t, p, files, n, err);

	return code == 0 && p->nmore ? check_terms(t, p, files, n, err) : code;
}

/* Can a piece of @t be read from where @p, one of its copies, says? */
static bool dcp_index_check_copy(const struct dcp_tensor *t, const struct dcp_piece *p,
				 const struct dcp_index_seen *files, size_t n)
{
	return check_piece(t, p, files, n, NULL) == 0;
}

/* Report the first piece that is malformed, or else the first piece whose bytes do not exist. */
static int check_pieces(const struct dcp_tensor *t, const struct dcp_index_seen *files,
			size_t n, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	int first = 0;

	for (size_t i = 0; i < t->npieces; i++) {
		int code =
			t->pieces[i].run_n ? check_piece(t, &t->pieces[i], files, n, &why) : 0;

		if (code < 0 && (first == 0 || code != -ENODATA)) {
			first = code;
			*err = why;
		}
		if (code < 0 && code != -ENODATA)
			break;
	}
	return first;
}

static int check_size(const struct dcp_tensor *t, uint64_t *nbytes, struct dcp_err *err)
{
	uint32_t size = dcp_dtype_info(t->dtype)->size;

	*nbytes = 0;
	if (t->dtype != DCP_DTYPE_OTHER && t->itemsize != size)
		return dcp_fail(err, -EBADMSG, "elements of %u byte%s; %s has %u", t->itemsize,
				dcp_s(t->itemsize), dcp_dtype_info(t->dtype)->name, size);
	if (t->itemsize == 0)
		return dcp_fail(err, -EBADMSG, "the size of an element is not known");
	if (!dcp_tensor_nbytes(t, nbytes) || *nbytes > INT64_MAX) {
		*nbytes = 0;
		return dcp_fail(err, -E2BIG, "its shape has more bytes than fit in 63 bits");
	}
	return 0;
}

/*
 * Compute the bytes of @t and check whether it can be read: size, pieces in their files, tiling. If
 * not, @err has the reason: -ENODATA if the only fault is that files of some pieces are missing or
 * end early, else -EBADMSG or the error of the scratch arena. @nbytes is always set: 0 when the
 * size itself is invalid.
 */
static int dcp_index_check(const struct dcp_tensor *t, const struct dcp_index_seen *files,
			   size_t n, struct dcp_arena *scratch, uint64_t *nbytes,
			   struct dcp_err *err)
{
	struct dcp_tiling tiling;
	int code = check_size(t, nbytes, err);

	/* Check boxes and runs first, because the later checks multiply their sides. */
	if (code == 0)
		code = dcp_tiling_init(&tiling, t, scratch, err);
	if (code == -ENOMEM)
		dcp_fail(err, code, "its %zu pieces need too much memory", t->npieces);
	return code < 0 ? code : check_pieces(t, files, n, err);
}

static void put_buf(sqlite3_stmt *s, int i, const struct dcp_buf *b)
{
	sqlite3_bind_text64(s, i, b->p, b->n, SQLITE_STATIC, SQLITE_UTF8);
}

/* Bind column 3, the stem, which is NULL if it equals the key. */
static void put_name(sqlite3_stmt *s, const char *key, const char *name)
{
	dcp_index_put_text(s, 3, strcmp(key, name) != 0 ? name : NULL);
}

/* A tensor before it becomes a row. */
struct draft {
	const struct dcp_tensor *t;
	char name[DCP_NAME_MAX + 1];
	uint64_t nbytes;
	uint32_t alias_of;
	bool partly;  /* the error concerns the files of some pieces only */
	bool borrows; /* the pieces are those of the current row of DCP_TOLD_TENSOR */
	const char *error;
	struct dcp_err err;
};

static void fail_draft(struct draft *d, const char *why, const char *what)
{
	if (d->error)
		return;
	dcp_fail(&d->err, -EBADMSG, "%s%.400s", why, what);
	d->error = d->err.msg;
}

/* Replacement of a key or path that exceeds the limits of an index: the row gets the hashed file
 * name of the key, and is broken. */
struct shortened {
	char key[DCP_NAME_MAX + 1];
	const char *path[1];
	char why[80];
};

static bool shorten_key(struct shortened *s, const char **key, const char *const **path,
			size_t *npath)
{
	uint64_t left = DCP_INDEX_MAX_PATH;
	size_t n = strlen(*key);

	for (size_t i = 0; i < *npath && left; i++)
		left -= DCP_MIN(left, strlen((*path)[i]) + 1);
	if (n <= DCP_INDEX_MAX_KEY && left)
		return false;
	snprintf(s->why, sizeof(s->why),
		 "its key of %zu bytes, or its path, is too long for an index", n);
	dcp_name_from_key(*key, true, s->key);
	s->path[0] = s->key;
	*key = s->key;
	*path = s->path;
	*npath = 1;
	return true;
}

static bool same_text(const char *a, const struct dcp_buf *b)
{
	return strlen(a) == b->n && memcmp(a, b->p, b->n) == 0;
}

/* Follow alias_of to the row that holds the bytes, so that all names of one tensor are one inode.
 * Afterwards DCP_TOLD_TENSOR is positioned on that row. */
static int resolve_alias(struct dcp_index_writer *w, struct draft *d)
{
	sqlite3_stmt *s = w->stmt[DCP_TOLD_TENSOR];
	const char *key = d->t->alias_of, *error;
	struct dcp_index_emitted emitted;
	sqlite3_int64 root;
	int code = dcp_index_find_key(w, key, dcp_hash64(key, strlen(key)), &emitted);

	if (code < 0 || !emitted.tensor) {
		if (code == 0 && !d->t->npieces)
			fail_draft(d, "an alias of a key that is not stored: ", key);
		return code;
	}
	for (root = emitted.tensor; root;) { /* at most two steps: roots have no alias */
		emitted.tensor = (uint32_t)root;
		sqlite3_reset(s);
		sqlite3_bind_int64(s, 1, root);
		if (sqlite3_step(s) != SQLITE_ROW)
			return dcp_index_sql_failed(w, SQLITE_CORRUPT);
		root = sqlite3_column_int64(s, 4);
	}
	if (strcmp((const char *)sqlite3_column_text(s, 2), d->t->dtype_name) != 0 ||
	    !same_text((const char *)sqlite3_column_text(s, 3), &w->shape)) {
		if (!d->t->npieces)
			fail_draft(d, "an alias whose dtype or shape is not that of ", key);
		return 0;
	}
	d->alias_of = emitted.tensor;
	d->borrows = d->t->npieces == 0;
	error = (const char *)sqlite3_column_text(s, 5);
	if (d->borrows && error) {
		d->partly = !d->error && sqlite3_column_int(s, 7) == 1;
		fail_draft(d, "", error);
	}
	return 0;
}

/* Find out what is wrong with the tensor, if anything, and its number of bytes. */
static int examine_tensor(struct dcp_index_writer *w, struct draft *d)
{
	const struct dcp_tensor *t = d->t;
	struct dcp_err err = { 0 };
	int code = t->alias_of ? resolve_alias(w, d) : 0;

	if (code < 0)
		return code;
	if (d->borrows) { /* these pieces were checked when they were emitted */
		if (!dcp_tensor_nbytes(t, &d->nbytes) || d->nbytes > INT64_MAX)
			d->nbytes = 0;
		return 0;
	}
	dcp_arena_reset(&w->scratch);
	code = dcp_index_check(t, dcp_index_seen(w), dcp_index_nseen(w), &w->scratch,
			       &d->nbytes, &err);
	if (code < 0) {
		d->partly = !d->error && code == -ENODATA;
		fail_draft(d, "", err.msg);
	}
	return 0;
}

static const char crowded[] = "too many other keys have the hash of its key";

/* If the key was emitted before, this row is broken, because it is not known which of the two is
 * meant. */
static int check_key(struct dcp_index_writer *w, struct draft *d, uint32_t number)
{
	uint64_t hash = dcp_hash64(d->t->key, strlen(d->t->key));
	struct dcp_index_emitted emitted;
	int code = dcp_index_find_key(w, d->t->key, hash, &emitted);

	if (code < 0)
		return code;
	if (emitted.tensor)
		fail_draft(d, "the key appears twice in the checkpoint: ", d->t->key);
	else if (emitted.unknown)
		fail_draft(d, crowded, "");
	else if (dcp_index_map_add(&w->keys, hash, number) < 0)
		return dcp_index_no_memory(w);
	return dcp_index_choose_stem(w, d->t->key,
				     emitted.tensor || emitted.object || emitted.unknown,
				     number, d->name);
}

static void bind_pieces(struct dcp_index_writer *w, const struct draft *d)
{
	sqlite3_stmt *s = w->stmt[DCP_ADD_TENSOR];

	if (d->borrows) {
		sqlite3_bind_value(s, 11, sqlite3_column_value(w->stmt[DCP_TOLD_TENSOR], 6));
		sqlite3_bind_value(s, 14, sqlite3_column_value(w->stmt[DCP_TOLD_TENSOR], 8));
		return;
	}
	sqlite3_bind_blob64(s, 11, w->pieces.p, w->pieces.n, SQLITE_STATIC);
	if (w->copies.n)
		sqlite3_bind_blob64(s, 14, w->copies.p, w->copies.n, SQLITE_STATIC);
}

static int insert_tensor(struct dcp_index_writer *w, const struct draft *d, uint32_t number)
{
	sqlite3_stmt *s = w->stmt[DCP_ADD_TENSOR];
	int code;

	sqlite3_bind_int64(s, 1, number);
	dcp_index_put_text(s, 2, d->t->key);
	put_name(s, d->t->key, d->name);
	sqlite3_bind_int64(s, 4, (sqlite3_int64)d->nbytes);
	dcp_index_put_text(s, 5, d->t->dtype_name);
	sqlite3_bind_int64(s, 6, dcp_tensor_shown_size(d->t));
	put_buf(s, 7, &w->shape);
	if (d->alias_of)
		sqlite3_bind_int64(s, 8, d->alias_of);
	else
		sqlite3_bind_null(s, 8);
	dcp_index_put_text(s, 9, d->error);
	put_buf(s, 10, &w->path_json);
	sqlite3_bind_int(s, 12, d->partly);
	sqlite3_bind_int(s, 15, d->t->entry);
	dcp_index_put_text(s, 13, d->t->cast ? dcp_dtype_info(d->t->dtype)->name : NULL);
	bind_pieces(w, d);
	code = dcp_index_run(w, DCP_ADD_TENSOR);
	sqlite3_reset(w->stmt[DCP_TOLD_TENSOR]);
	sqlite3_clear_bindings(s);
	if (code == 0 && d->alias_of) {
		sqlite3_bind_int64(w->stmt[DCP_ADD_ALIAS], 1, d->alias_of);
		code = dcp_index_run(w, DCP_ADD_ALIAS);
	}
	return code;
}

/* Pack the copies that can be read; if they do not fit, none. */
static int prepare_copies(struct dcp_index_writer *w, const struct dcp_tensor *t)
{
	struct dcp_tensor kept = *t;
	struct dcp_piece *p;

	dcp_buf_reset(&w->copies);
	if (!t->ncopies || t->error)
		return 0;
	dcp_arena_reset(&w->scratch);
	p = dcp_arena_calloc(&w->scratch, t->ncopies, sizeof(*p));
	if (!p)
		return dcp_index_no_memory(w);
	kept.pieces = p;
	kept.npieces = 0;
	for (size_t i = 0; i < t->ncopies; i++)
		if (dcp_index_check_copy(t, &t->copies[i], dcp_index_seen(w),
					 dcp_index_nseen(w)))
			p[kept.npieces++] = t->copies[i];
	if (kept.npieces)
		dcp_pack_pieces(&w->copies, &kept);
	if (w->copies.n > DCP_INDEX_MAX_FIELD)
		dcp_buf_reset(&w->copies);
	return w->copies.failed ? dcp_index_no_memory(w) : 0;
}

/* Prepare the shape, path and pieces in the form of the row. */
static int prepare_row(struct dcp_index_writer *w, const struct dcp_tensor *t, struct draft *d)
{
	dcp_buf_reset(&w->shape);
	dcp_index_put_shape(&w->shape, t->shape, t->ndim);
	dcp_buf_reset(&w->path_json);
	dcp_index_put_path(&w->path_json, t->key, t->path, t->npath);
	dcp_buf_reset(&w->pieces);
	dcp_pack_pieces(&w->pieces, t);
	if (w->shape.failed || w->path_json.failed || w->pieces.failed)
		return dcp_index_no_memory(w);
	if (w->pieces.n > DCP_INDEX_MAX_FIELD) {
		static const struct dcp_tensor none;

		fail_draft(d, "it has more pieces than an index can keep", "");
		dcp_buf_reset(&w->pieces);
		dcp_pack_pieces(&w->pieces, &none);
	}
	return prepare_copies(w, t);
}

/* Tensors and objects are numbered together: that keeps their order. */
static uint32_t next_number(const struct dcp_index_writer *w)
{
	return (uint32_t)(w->counts.tensors + w->counts.objects) + 1;
}

int dcp_index_emit_tensor(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_index_writer *w = ctx;
	struct dcp_tensor t = *emitted;
	struct draft d = { .t = &t, .error = emitted->error };
	uint32_t number = next_number(w);
	uint64_t elements;
	struct shortened s;
	int code = w->err.code;

	if (code < 0)
		return code;
	if (shorten_key(&s, &t.key, &t.path, &t.npath))
		fail_draft(&d, s.why, "");
	if (t.ndim > DCP_MAX_NDIM) { /* cannot be emitted at all */
		fail_draft(&d, "it has more than 64 dimensions", "");
		t.ndim = 0;
		t.npieces = 0;
	}
	if (!t.dtype_name || t.dtype != DCP_DTYPE_OTHER)
		t.dtype_name = dcp_dtype_info(dcp_tensor_shown(&t))->name;
	if (number >= DCP_INDEX_MAX_ROWS)
		return dcp_index_give_up(w, -E2BIG, "too many rows");
	code = prepare_row(w, &t, &d);
	if (code == 0)
		code = check_key(w, &d, number);
	if (code == 0)
		code = examine_tensor(w, &d);
	if (code == 0 && t.cast && !dcp_tensor_shown_nbytes(&t, &d.nbytes)) {
		fail_draft(&d, "it has more bytes than fit in 63 bits", "");
		d.nbytes = 0;
	}
	if (code == 0)
		code = insert_tensor(w, &d, number);
	if (code < 0)
		return code;
	w->counts.tensors++;
	w->counts.broken += d.error != NULL;
	if (d.alias_of)
		return 0;
	if (dcp_ckd_add(&w->counts.bytes, w->counts.bytes, d.nbytes))
		w->counts.bytes = UINT64_MAX;
	if (!dcp_shape_volume(t.shape, t.ndim, &elements) ||
	    dcp_ckd_add(&w->counts.elements, w->counts.elements, elements))
		w->counts.elements = UINT64_MAX;
	return 0;
}

/* Can the stored bytes be read, judging by the file? If not, they are not recorded; the object has
 * its own error if the file is damaged. */
static bool check_stored(struct dcp_index_writer *w, const struct dcp_stretch *stored)
{
	struct dcp_tensor bytes;
	struct dcp_piece piece;
	uint64_t dims[2], n;
	struct dcp_err why;

	if (!stored)
		return false;
	dcp_arena_reset(&w->scratch);
	dcp_stretch_tensor(stored, dims, &piece, &bytes);
	return dcp_index_check(&bytes, dcp_index_seen(w), dcp_index_nseen(w), &w->scratch, &n,
			       &why) == 0;
}

static void bind_stored(sqlite3_stmt *s, const struct dcp_stretch *stored)
{
	sqlite3_bind_int64(s, 10, (sqlite3_int64)stored->file + 1);
	sqlite3_bind_int64(s, 11, (sqlite3_int64)stored->off);
	sqlite3_bind_int64(s, 12, (sqlite3_int64)stored->nbytes);
	sqlite3_bind_int(s, 13, stored->filter);
	sqlite3_bind_int64(s, 14, (sqlite3_int64)stored->n);
}

/* Into the table of @which; items have no @name. */
static int insert_object(struct dcp_index_writer *w, enum dcp_index_add which,
			 const struct dcp_object *o, const char *name, uint32_t number)
{
	size_t told = o->classes ? strlen(o->classes) : 0;
	bool fits =
		!o->json || (o->json_len < DCP_INDEX_MAX_FIELD && told < DCP_INDEX_MAX_FIELD);
	const char *json = fits ? o->json : NULL, *error = o->error;
	sqlite3_stmt *s = w->stmt[which];
	int code;

	if (!fits && !error)
		error = "its value is too long for an index";
	if (!json && !error)
		error = "it has no value";
	sqlite3_bind_int64(s, 1, number);
	dcp_index_put_text(s, 2, o->key);
	if (name)
		put_name(s, o->key, name);
	dcp_index_put_text(s, 4, o->type ? o->type : "");
	sqlite3_bind_int64(s, 5, json ? (sqlite3_int64)o->json_len + 1 : 0);
	dcp_index_put_text(s, 6, error);
	put_buf(s, 7, &w->path_json);
	if (json)
		sqlite3_bind_text64(s, 8, json, o->json_len, SQLITE_STATIC, SQLITE_UTF8);
	else
		sqlite3_bind_null(s, 8);
	dcp_index_put_text(s, 9, json ? o->classes : NULL);
	if (name) {
		sqlite3_bind_int(s, 15, o->entry);
		w->counts.broken += error != NULL;
		if (check_stored(w, o->stored))
			bind_stored(s, o->stored);
	}
	code = dcp_index_run(w, which);
	sqlite3_clear_bindings(s);
	return code;
}

/* Prepare the key and path in the form of the row; @s owns their text. */
static int prepare_object(struct dcp_index_writer *w, struct dcp_object *o, uint32_t number,
			  struct shortened *s)
{
	if (shorten_key(s, &o->key, &o->path, &o->npath)) {
		o->error = s->why;
		o->json = NULL;
	}
	dcp_buf_reset(&w->path_json);
	dcp_index_put_path(&w->path_json, o->key, o->path, o->npath);
	if (dcp_buf_error(&w->path_json))
		return dcp_index_no_memory(w);
	return number < DCP_INDEX_MAX_ROWS ? 0 : dcp_index_give_up(w, -E2BIG, "too many rows");
}

int dcp_index_emit_item(void *ctx, const struct dcp_object *emitted)
{
	struct dcp_index_writer *w = ctx;
	struct dcp_object o = *emitted;
	struct shortened s;
	int code = w->err.code;

	if (code == 0)
		code = prepare_object(w, &o, ++w->nitems, &s);
	return code < 0 ? code : insert_object(w, DCP_ADD_ITEM, &o, NULL, w->nitems);
}

int dcp_index_emit_object(void *ctx, const struct dcp_object *emitted)
{
	struct dcp_index_writer *w = ctx;
	struct dcp_object o = *emitted;
	struct shortened s;
	uint64_t hash;
	uint32_t number = next_number(w);
	char name[DCP_NAME_MAX + 1];
	struct dcp_index_emitted earlier;
	int code = w->err.code;

	if (code < 0)
		return code;
	code = prepare_object(w, &o, number, &s);
	if (code < 0)
		return code;
	hash = dcp_hash64(o.key, strlen(o.key));
	code = dcp_index_find_key(w, o.key, hash, &earlier);
	if (code < 0)
		return code;
	if ((earlier.object || earlier.unknown) && !o.error)
		o.error = earlier.object ? "the key appears twice in the checkpoint" : crowded;
	else if (!earlier.object && !earlier.unknown &&
		 dcp_index_map_add(&w->keys, hash, number | DCP_INDEX_OBJECT) < 0)
		return dcp_index_no_memory(w);
	code = dcp_index_choose_stem(w, o.key,
				     earlier.tensor || earlier.object || earlier.unknown,
				     number | DCP_INDEX_OBJECT, name);
	if (code == 0)
		code = insert_object(w, DCP_ADD_OBJECT, &o, name, number);
	w->counts.objects += code == 0;
	return code;
}
