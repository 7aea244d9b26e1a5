/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/model/geometry/strided.h"
#include "core/parse/numpy/numpy.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view_int.h"

/* Data after a safetensors header starts on a cache line; the format itself asks for 8. */
enum { SAFETENSORS_ALIGN = 64, VIEW_MEMORY = 512 << 20 };

static const struct {
	const char *name, *extension;
} forms[DCP_AS_COUNT] = {
	[DCP_AS_RAW] = { "raw", ".bin" },
	[DCP_AS_NPY] = { "npy", ".npy" },
	[DCP_AS_SAFETENSORS] = { "safetensors", ".safetensors" },
};

const char *dcp_as_name(enum dcp_as as)
{
	return forms[as].name;
}

const char *dcp_as_extension(enum dcp_as as)
{
	return forms[as].extension;
}

/* Write a safetensors header with the metadata of the files of row @id. */
static int put_safetensors(struct dcp_buf *out, struct dcp_index *ix, int64_t id,
			   const char *key, enum dcp_dtype dtype, uint32_t ndim,
			   const uint64_t *shape, uint64_t nbytes)
{
	struct dcp_said *said = NULL;
	const char *object;
	int rc = dcp_said_create(ix, &said);

	if (rc == 0)
		rc = dcp_said_add(said, id);
	if (rc == 0)
		rc = dcp_said_take(said, &object);
	if (rc == 0)
		rc = dcp_safetensors_header(out, key, dtype, ndim, shape, nbytes,
					    SAFETENSORS_ALIGN, object);
	dcp_said_free(said);
	return rc;
}

/* Append the header of this form for row @id, and compute the bytes of one element in the body. */
static int put_header(struct dcp_buf *out, struct dcp_index *ix, int64_t id, enum dcp_as as,
		      const char *key, enum dcp_dtype dtype, uint32_t itemsize, uint32_t ndim,
		      const uint64_t *shape, uint64_t nbytes, uint32_t *unit)
{
	*unit = itemsize;
	switch (as) {
	case DCP_AS_NPY:
		*unit = dcp_dtype_info(dtype)->npy_size;
		return dcp_npy_header(out, dtype, ndim, shape);
	case DCP_AS_SAFETENSORS:
		return put_safetensors(out, ix, id, key, dtype, ndim, shape, nbytes);
	case DCP_AS_RAW:
		break;
	}
	return 0;
}

bool dcp_view_can_show(const char *key, enum dcp_dtype dtype, enum dcp_as as)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(dtype);

	switch (as) {
	case DCP_AS_NPY:
		return info->npy != NULL;
	case DCP_AS_SAFETENSORS:
		return info->safetensors && dcp_safetensors_can_name(key);
	case DCP_AS_RAW:
		break;
	}
	return true;
}

int dcp_view_size_of(struct dcp_index *ix, const struct dcp_row *row, enum dcp_as as,
		     uint64_t *size)
{
	uint32_t itemsize = dcp_dtype_info(row->dtype)->size, unit;
	struct dcp_buf header = DCP_BUF_INIT;
	int rc;

	if (as == DCP_AS_RAW) {
		*size = row->nbytes;
		return 0;
	}
	if (!dcp_view_can_show(row->key, row->dtype, as))
		return -ENOTSUP;
	if (itemsize == 0)
		return -EBADMSG;
	if (as == DCP_AS_NPY) { /* the most frequent case of ls -l */
		*size = dcp_npy_header_size(row->dtype, row->ndim, row->shape) +
			row->nbytes / itemsize * dcp_dtype_info(row->dtype)->npy_size;
		return 0;
	}
	rc = put_header(&header, ix, row->id, as, row->key, row->dtype, itemsize, row->ndim,
			row->shape, row->nbytes, &unit);
	if (rc == 0)
		*size = header.n + row->nbytes / itemsize * unit;
	dcp_buf_finish(&header);
	return rc;
}

/* Set the cut of a view whose emitted tensor is set. */
static int take_cut(struct dcp_view *view, const struct dcp_cut *cut, struct dcp_err *err)
{
	const struct dcp_tensor *t = &view->emitted;

	view->whole = !cut || dcp_cut_is_whole(cut, t->shape);
	view->uncut = !cut;
	if (!cut)
		return dcp_cut_whole(&view->cut, t->ndim, t->shape, &view->arena);
	if (!dcp_cut_fits(cut, t->ndim, t->shape))
		return dcp_fail(err, -EINVAL, "what is asked for is not a part of this shape");
	return dcp_cut_copy(&view->cut, cut, &view->arena);
}

/* Finish a view whose tensor is located: header, and how elements are delivered. */
static int finish_view(struct dcp_view *view, struct dcp_index *ix, int64_t id, enum dcp_as as,
		       struct dcp_err *err)
{
	struct dcp_tensor *t = &view->t;
	uint64_t shape[DCP_MAX_NDIM], n, nbytes;
	uint32_t ndim = dcp_cut_shape(&view->cut, shape);
	enum dcp_dtype shown = dcp_tensor_shown(t);
	int rc;

	view->shown = dcp_tensor_shown_size(t);
	if (!dcp_cut_volume(&view->cut, &n) || dcp_ckd_mul(&nbytes, n, view->shown))
		return dcp_fail(err, -EBADMSG, "size overflows 64 bits");
	view->ahead = dcp_arena_calloc(&view->arena, 1, sizeof(*view->ahead));
	if (!view->ahead)
		return -ENOMEM;
	rc = put_header(&view->header, ix, id, as, t->key, shown, view->shown, ndim, shape,
			nbytes, &view->unit);
	if (rc < 0)
		return dcp_fail(err, rc, "%s has no form for %s", dcp_as_name(as),
				dcp_view_can_show("", shown, as) ? "a tensor called so"
								 : t->dtype_name);
	if (dcp_ckd_mul(&view->body, n, view->unit))
		return dcp_fail(err, -EBADMSG, "size overflows 64 bits");
	view->widen = as == DCP_AS_NPY && dcp_dtype_info(shown)->widened;
	view->convert = view->widen || t->cast;
	for (size_t i = 0; i < t->npieces; i++)
		if (view->backing[i].needed) {
			view->flips |= t->pieces[i].filter == DCP_FILTER_NEG ||
				       t->pieces[i].filter == DCP_FILTER_CONJ;
			view->convert |= t->pieces[i].swap || view->flips;
		}
	return 0;
}

static struct dcp_view *new_view(struct dcp_version *v)
{
	struct dcp_view *view = calloc(1, sizeof(*view));

	if (!view)
		return NULL;
	view->files = dcp_version_files(v);
	view->frames = dcp_version_frames(v);
	dcp_arena_init(&view->arena, VIEW_MEMORY);
	return view;
}

/* Open a view whose emitted tensor is set; @id is its row, if it is a tensor; @rc is the result of
 * setting it. */
static int open_emitted(struct dcp_view *view, struct dcp_version *v, int64_t id,
			enum dcp_as as, const struct dcp_cut *cut, int rc,
			struct dcp_view **out, struct dcp_err *err)
{
	if (rc == 0)
		rc = take_cut(view, cut, err);
	if (rc == 0)
		rc = dcp_view_locate(view, err);
	if (rc == 0)
		rc = finish_view(view, dcp_version_index(v), id, as, err);
	if (rc < 0) {
		if (view->emitted.key)
			dcp_err_where(err, rc, "%s: %s", dcp_version_name(v),
				      view->emitted.key);
		dcp_view_close(view);
		return dcp_err_say(err, rc);
	}
	*out = view;
	return 0;
}

int dcp_view_open(struct dcp_version *v, int64_t id, enum dcp_as as, const struct dcp_cut *cut,
		  struct dcp_view **out, struct dcp_err *err)
{
	struct dcp_view *view = new_view(v);
	int rc;

	if (!view)
		return dcp_err_say(err, -ENOMEM);
	rc = dcp_index_tensor_part(dcp_version_index(v), id, cut, &view->arena, &view->emitted,
				   err);
	if (rc == 0 && view->emitted.error && !(view->emitted.partly && cut))
		rc = dcp_fail(err, -EIO, "%s", view->emitted.error);
	if (rc == 0 && view->emitted.itemsize == 0)
		rc = dcp_fail(err, -EBADMSG, "index row: elements of no size");
	return open_emitted(view, v, id, as, cut, rc, out, err);
}

/* Set the emitted tensor to one that consists of these bytes. */
static int take_stretch(struct dcp_view *view, const struct dcp_stretch *s, const char *key)
{
	struct dcp_piece *p = dcp_arena_calloc(&view->arena, 1, sizeof(*p));
	uint64_t *dims = p ? dcp_arena_calloc(&view->arena, 2, sizeof(*dims)) : NULL;

	if (!dims)
		return -ENOMEM;
	dcp_stretch_tensor(s, dims, p, &view->emitted);
	view->emitted.key = key;
	return 0;
}

static int open_whole(struct dcp_version *v, struct dcp_files *files,
		      const struct dcp_file_id *id, uint32_t number, struct dcp_view **out,
		      struct dcp_err *err)
{
	const struct dcp_stretch all = { .file = number, .nbytes = id->size, .n = id->size };
	struct dcp_view *view = new_view(v);

	if (!view)
		return dcp_err_say(err, -ENOMEM);
	view->files = files;
	return open_emitted(view, v, 0, DCP_AS_RAW, NULL, take_stretch(view, &all, id->name),
			    out, err);
}

int dcp_view_open_object(struct dcp_version *v, int64_t id, struct dcp_view **out,
			 struct dcp_err *err)
{
	struct dcp_view *view = new_view(v);
	struct dcp_object o;
	int rc;

	if (!view)
		return dcp_err_say(err, -ENOMEM);
	rc = dcp_index_object(dcp_version_index(v), id, &view->arena, &o, err);
	if (rc == 0 && !o.stored)
		rc = o.error ? dcp_fail(err, -EBADMSG, "%s: %s", o.key, o.error)
			     : dcp_fail(err, -ENOTSUP,
					"%s is not stored as bytes of its own, but as a part "
					"of something",
					o.key);
	if (rc == 0)
		rc = take_stretch(view, o.stored, o.key);
	return open_emitted(view, v, 0, DCP_AS_RAW, NULL, rc, out, err);
}

int dcp_view_open_file(struct dcp_version *v, uint32_t number, struct dcp_view **out,
		       struct dcp_err *err)
{
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(dcp_version_index(v), &n);

	if (number >= n)
		return dcp_fail(err, -EBADMSG, "index row: file %u of %zu", number, n);
	return open_whole(v, dcp_version_files(v), &ids[number], number, out, err);
}

int dcp_view_open_beside(struct dcp_version *v, uint32_t root, uint32_t number,
			 struct dcp_view **out, struct dcp_err *err)
{
	const struct dcp_derived *d = dcp_version_derived(v);

	if (!d || root >= d->nbeside || number >= d->beside[root].n)
		return dcp_err_say(err, -ENOENT);
	return open_whole(v, d->beside[root].files, &d->beside[root].id[number], number, out,
			  err);
}

void dcp_view_close(struct dcp_view *view)
{
	if (!view)
		return;
	for (size_t i = 0; i < view->ndecoded; i++)
		munmap(view->decoded[i].p, view->decoded[i].n);
	dcp_buf_finish(&view->header);
	dcp_arena_finish(&view->arena);
	free(view);
}

struct dcp_files *dcp_view_files(const struct dcp_view *view)
{
	return view->files;
}

uint64_t dcp_view_size(const struct dcp_view *view)
{
	return view->header.n + view->body;
}

const struct dcp_tensor *dcp_view_tensor(const struct dcp_view *view)
{
	return &view->emitted;
}

const void *dcp_view_header(const struct dcp_view *view, size_t *n)
{
	*n = view->header.n;
	return view->header.p;
}

struct strided_call {
	const struct dcp_view *view;
	dcp_view_strided_fn fn;
	void *ctx;
};

static int emit_backing(void *arg, const struct dcp_strided *s)
{
	const struct strided_call *c = arg;
	const struct dcp_backing *b = &c->view->backing[s->piece - c->view->t.pieces];
	bool copy = dcp_files_unpacked(c->view->files, b->number);

	if (s->piece->filter == DCP_FILTER_ZERO)
		return 0;
	return c->fn(c->ctx, s, copy ? DCP_VIEW_NO_FILE : b->number);
}

int dcp_view_stored(const struct dcp_view *view, const struct dcp_strided *s,
		    struct dcp_stored *out, struct dcp_err *err)
{
	const struct dcp_piece *emitted = &view->emitted.pieces[s->piece - view->t.pieces];

	*out = (struct dcp_stored){ emitted->file, emitted->off, emitted->nbytes,
				    dcp_filter_name(emitted->filter) };
	if (!dcp_files_unpacked(view->files, emitted->file))
		return 0;
	out->off = 0;
	return dcp_files_packed(view->files, emitted->file, &out->n, &out->codec, err);
}

int dcp_view_strided(const struct dcp_view *view, dcp_view_strided_fn fn, void *ctx)
{
	struct strided_call call = { view, fn, ctx };

	if (view->widen || view->flips || view->t.cast)
		return -ENOTSUP;
	return dcp_strided_emit(&view->tiling, &view->cut, emit_backing, &call);
}

/* ---- reply ---- */

void dcp_reply_begin(struct dcp_reply *r, size_t size, void *(*take)(void *ctx, size_t size),
		     void *ctx)
{
	r->size = size;
	r->take = take;
	r->ctx = ctx;
	r->copy = false;
	r->buf = NULL;
	r->done = 0;
	r->n = r->nheld = 0;
}

void dcp_reply_finish(struct dcp_reply *r)
{
	while (r->nheld) {
		r->nheld--;
		dcp_files_release(r->held[r->nheld].files, r->held[r->nheld].number);
	}
}

uint32_t dcp_reply_room(const struct dcp_reply *r)
{
	return r->copy || r->n >= DCP_REPLY_ENTRIES - 1 ? 0 : DCP_REPLY_ENTRIES - 1 - r->n;
}

void *dcp_reply_buffer(struct dcp_reply *r)
{
	if (!r->buf)
		r->buf = r->take(r->ctx, r->size);
	return r->buf ? r->buf + r->done : NULL;
}

/* Consecutive copies are one entry. */
void dcp_reply_copied(struct dcp_reply *r, size_t n)
{
	struct iovec *last = r->n ? &r->entry[r->n - 1] : NULL;
	char *at = r->buf + r->done;

	if (last && (char *)last->iov_base >= r->buf &&
	    (char *)last->iov_base + last->iov_len == at)
		last->iov_len += n;
	else
		r->entry[r->n++] = (struct iovec){ at, n };
	r->done += n;
}

int dcp_reply_point(struct dcp_reply *r, const void *p, size_t n)
{
	void *at;

	if (dcp_reply_room(r)) {
		r->entry[r->n++] = (struct iovec){ (void *)(uintptr_t)p, n };
		r->done += n;
		return 0;
	}
	at = dcp_reply_buffer(r);
	if (!at)
		return -ENOMEM;
	memcpy(at, p, n);
	dcp_reply_copied(r, n);
	return 0;
}
