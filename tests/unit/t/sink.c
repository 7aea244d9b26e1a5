/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/sink.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/model/geometry/tiling.h"
#include "core/origin/archive/archive.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t.h"
#include "tests/unit/t/parse/dir.h"

enum { MOST = 1 << 20 };

static void *copy_bytes(struct t_sink *s, const void *p, size_t n)
{
	void *to = dcp_arena_alloc(&s->arena, n ? n : 1);

	assert_non_null(to);
	if (n)
		memcpy(to, p, n);
	return to;
}

static const char *copy_str(struct t_sink *s, const char *p)
{
	return p ? copy_bytes(s, p, strlen(p) + 1) : NULL;
}

static const char *const *copy_path(struct t_sink *s, const char *const *path, size_t n)
{
	const char **to = copy_bytes(s, path, n * sizeof(*path));

	for (size_t i = 0; i < n; i++)
		to[i] = copy_str(s, path[i]);
	return to;
}

/* Make room for one more at the end of an array that doubles. */
static void *make_room(struct t_sink *s, void *p, size_t n, size_t size)
{
	void *to = p;

	if ((n & (n - 1)) == 0) {
		to = dcp_arena_calloc(&s->arena, n ? 2 * n : 1, size);
		assert_non_null(to);
		if (n)
			memcpy(to, p, n * size);
	}
	return to;
}

static bool has_failed(struct t_sink *s)
{
	return ++s->calls == s->fail_at;
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	struct t_sink *s = ctx;

	if (has_failed(s))
		return -ENOSPC;
	for (size_t i = 0; i < s->nfiles; i++)
		if (strcmp(s->file[i], name) == 0) {
			*number = (uint32_t)i;
			return 0;
		}
	s->file = make_room(s, s->file, s->nfiles, sizeof(*s->file));
	s->file[s->nfiles] = copy_str(s, name);
	*number = (uint32_t)s->nfiles++;
	return 0;
}

static int check_files(const struct t_sink *s, const struct dcp_tensor *t, struct dcp_err *err)
{
	for (size_t i = 0; s->dir && i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];
		dcp_auto_blob struct dcp_blob blob = { 0 };

		assert_true(p->file < s->nfiles);
		if (dcp_site_open(&s->dir->at, s->file[p->file], &blob, NULL, err) < 0)
			return -EBADMSG;
		if (!dcp_range_ok(p->off, p->nbytes, blob.size))
			return dcp_fail_at(err, -EBADMSG, p->off, "piece past the end of %s",
					   s->file[p->file]);
	}
	return 0;
}

static const char *check_tensor(struct t_sink *s, const struct dcp_tensor *t)
{
	struct dcp_err err = { 0 };
	struct dcp_tiling tl;
	uint64_t nbytes;
	int rc;

	if (!dcp_tensor_nbytes(t, &nbytes) || nbytes > INT64_MAX)
		return "too big";
	rc = dcp_tiling_init(&tl, t, &s->arena, &err);
	if (rc == 0)
		rc = check_files(s, t, &err);
	return rc < 0 ? copy_str(s, err.msg) : NULL;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct t_sink *s = ctx;
	struct dcp_piece *piece;
	struct dcp_tensor *to;

	if (has_failed(s))
		return -ENOSPC;
	s->tensor = make_room(s, s->tensor, s->ntensors, sizeof(*s->tensor));
	to = &s->tensor[s->ntensors++];
	*to = *t;
	assert_non_null(t->key);
	assert_non_null(t->dtype_name);
	assert_true(t->ndim <= DCP_MAX_NDIM);
	to->key = copy_str(s, t->key);
	to->path = copy_path(s, t->path, t->npath);
	to->dtype_name = copy_str(s, t->dtype_name);
	to->shape = copy_bytes(s, t->shape, t->ndim * sizeof(*t->shape));
	to->alias_of = copy_str(s, t->alias_of);
	to->error = copy_str(s, t->error);
	to->pieces = piece = copy_bytes(s, t->pieces, t->npieces * sizeof(*t->pieces));
	for (size_t i = 0; i < t->npieces; i++) {
		piece[i].lo = copy_bytes(s, piece[i].lo, t->ndim * sizeof(uint64_t));
		piece[i].len = copy_bytes(s, piece[i].len, t->ndim * sizeof(uint64_t));
		if (piece[i].stride)
			piece[i].stride =
				copy_bytes(s, piece[i].stride, t->ndim * sizeof(uint64_t));
		if (piece[i].more)
			piece[i].more = copy_bytes(s, piece[i].more,
						   piece[i].nmore * sizeof(struct dcp_term));
	}
	if (!to->error)
		to->error = check_tensor(s, to);
	return 0;
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	struct t_sink *s = ctx;
	struct dcp_object *to;

	if (has_failed(s))
		return -ENOSPC;
	s->object = make_room(s, s->object, s->nobjects, sizeof(*s->object));
	to = &s->object[s->nobjects++];
	*to = *o;
	assert_non_null(o->key);
	assert_non_null(o->type);
	assert_true(!o->json == !!o->error);
	to->key = copy_str(s, o->key);
	to->path = copy_path(s, o->path, o->npath);
	to->type = copy_str(s, o->type);
	to->error = copy_str(s, o->error);
	if (o->stored)
		to->stored = copy_bytes(s, o->stored, sizeof(*o->stored));
	if (o->json) {
		char *json = copy_bytes(s, o->json, o->json_len + 1);

		json[o->json_len] = '\0';
		to->json = json;
	}
	return 0;
}

static int on_meta(void *ctx, const char *name, const char *value)
{
	struct t_sink *s = ctx;

	if (has_failed(s))
		return -ENOSPC;
	s->fact = make_room(s, s->fact, s->nfacts, sizeof(*s->fact));
	s->fact[s->nfacts++] = (struct t_fact){ copy_str(s, name), copy_str(s, value) };
	return 0;
}

/* Told as the fact "unpacked": who wants the bytes reads them from what it decompressed. */
static int on_unpacked(void *ctx, const char *name, uint32_t *number)
{
	int rc = on_meta(ctx, "unpacked", name);

	return rc < 0 ? rc : on_file(ctx, name, number);
}

static int on_sidecar(void *ctx, const char *name)
{
	return on_meta(ctx, "sidecar", name);
}

void t_sink_init(struct t_sink *s, const struct dcp_dir *dir)
{
	*s = (struct t_sink){
		.sink = { .file = on_file,
			  .tensor = on_tensor,
			  .object = on_object,
			  .meta = on_meta,
			  .unpacked = on_unpacked,
			  .sidecar = on_sidecar,
			  .ctx = s },
		.dir = dir,
	};
	dcp_arena_init(&s->arena, SIZE_MAX / 2);
}

void t_sink_finish(struct t_sink *s)
{
	dcp_arena_finish(&s->arena);
}

const struct dcp_tensor *t_sink_tensor(const struct t_sink *s, const char *key)
{
	for (size_t i = s->ntensors; i-- > 0;)
		if (strcmp(s->tensor[i].key, key) == 0)
			return &s->tensor[i];
	return NULL;
}

const struct dcp_object *t_sink_object(const struct t_sink *s, const char *key)
{
	for (size_t i = s->nobjects; i-- > 0;)
		if (strcmp(s->object[i].key, key) == 0)
			return &s->object[i];
	return NULL;
}

const char *t_sink_fact(const struct t_sink *s, const char *name)
{
	for (size_t i = s->nfacts; i-- > 0;)
		if (strcmp(s->fact[i].name, name) == 0)
			return s->fact[i].value;
	return NULL;
}

/* ---- reading ---- */

/* Where the elements of a piece lie in @src, whatever it is wrapped in. */
struct place {
	struct dcp_source src;
	uint64_t off;
	uint64_t stride[DCP_MAX_NDIM];
	bool swap;
	uint8_t filter;
};

static void row_major(uint64_t *stride, const uint64_t *len, uint32_t ndim)
{
	uint64_t step = 1;

	for (uint32_t k = ndim; k-- > 0; step *= len[k])
		stride[k] = step;
}

static int locate_in_stream(const struct dcp_tensor *t, const struct dcp_piece *p,
			    const struct dcp_source *stream, struct place *at,
			    struct dcp_err *err)
{
	struct dcp_torch_tensor tt;
	struct dcp_torch *torch;
	int rc = dcp_torch_open(stream, 0, &torch, err);

	if (rc < 0)
		return rc;
	rc = dcp_torch_tensor(torch, dcp_torch_root(torch), &tt, err);
	dcp_torch_close(torch);
	if (rc < 0)
		return rc;
	if (p->enc == DCP_ENC_TORCH_FLAT && rc == 1) {
		uint64_t volume = 0;

		assert_true(tt.row_major && dcp_shape_volume(tt.shape, tt.ndim, &volume));
		assert_int_equal(volume, p->run_n);
		row_major(at->stride, p->len, t->ndim);
		at->off = tt.off;
		at->swap = tt.swap;
		return 0;
	}
	if (rc == 0 || tt.ndim != t->ndim ||
	    memcmp(tt.shape, p->len, t->ndim * sizeof(*tt.shape)) != 0 ||
	    tt.dtype != t->dtype || tt.itemsize != t->itemsize)
		return dcp_fail_at(err, -EBADMSG, p->off, "the item holds another tensor");
	at->off = tt.off;
	at->swap = tt.swap;
	at->filter = (uint8_t)tt.filter;
	memcpy(at->stride, tt.stride, sizeof(tt.stride));
	return 0;
}

/* Characters below 256 in UTF-8, to the bytes of those numbers. */
static int decode_text(const struct dcp_source *text, struct dcp_buf *buf, struct dcp_err *err)
{
	for (uint64_t i = 0; i < text->size; i++) {
		uint8_t c[2] = { 0 };
		int rc = dcp_source_read(text, i, c, 1);

		if (rc == 0 && c[0] >= 0xc2 && c[0] <= 0xc3) {
			rc = dcp_source_read(text, ++i, c + 1, 1);
			c[0] = (uint8_t)((c[0] & 3) << 6 | (c[1] & 0x3f));
		} else if (c[0] >= 0x80) {
			rc = -EBADMSG;
		}
		if (rc < 0)
			return dcp_fail_at(err, rc, i, "not Latin-1 text");
		dcp_buf_add(buf, c, 1);
	}
	return 0;
}

static int locate_piece(const struct dcp_tensor *t, const struct dcp_piece *p,
			const struct dcp_source *file, struct dcp_source *window,
			struct dcp_buf *buf, struct place *at, struct dcp_err *err)
{
	*window = dcp_source_window(file, p->off, p->nbytes);
	at->src = *window;
	at->off = 0;
	at->swap = p->swap;
	at->filter = p->filter;
	if (p->filter == DCP_FILTER_ZSTD) {
		int rc = dcp_inflate_zstd(window, buf, 1 << 30, err);

		if (rc < 0)
			return rc;
		at->src = dcp_source_mem(buf->p, buf->n);
		*window = at->src;
	}
	if (p->filter == DCP_FILTER_LATIN1) {
		int rc = decode_text(window, buf, err);

		if (rc < 0)
			return rc;
		at->src = dcp_source_mem(buf->p, buf->n);
	}
	if (p->filter == DCP_FILTER_DEFLATE) { /* the elements are its end */
		size_t need = (size_t)p->run_n * t->itemsize, n = 0;
		char *all = malloc(need + (1 << 20));
		int rc = dcp_inflate_head(window, DCP_CODEC_DEFLATE, all, need + (1 << 20), &n,
					  err);

		if (rc == 0 && n >= need)
			dcp_buf_add(buf, all + n - need, need);
		free(all);
		if (rc < 0)
			return rc;
		at->src = dcp_source_mem(buf->p, buf->n);
	}
	if (p->enc != DCP_ENC_PLAIN)
		return locate_in_stream(t, p, window, at, err);
	if (p->stride)
		memcpy(at->stride, p->stride, t->ndim * sizeof(*p->stride));
	else
		row_major(at->stride, p->len, t->ndim);
	return 0;
}

/* Of one element: every number in it, or the last. */
static void flip_signs(char *e, size_t size, size_t unit, bool last)
{
	for (size_t k = last ? size : unit; k <= size; k += unit)
		e[k - 1] = (char)(e[k - 1] ^ 0x80);
}

static int gather_piece(const struct dcp_tensor *t, const struct dcp_piece *p,
			const struct place *at, char *out, struct dcp_err *err)
{
	uint64_t i[DCP_MAX_NDIM] = { 0 }, dst_stride[DCP_MAX_NDIM];

	row_major(dst_stride, t->shape, t->ndim);
	for (uint64_t k = t->ndim, left = p->run_lo; p->run_n && k-- > 0; left /= p->len[k])
		i[k] = left % p->len[k];
	for (uint64_t run = 0; run < p->run_n; run++) {
		uint64_t from = 0, to = 0;
		char *e;
		int rc;

		for (uint32_t k = 0; k < t->ndim; k++) {
			from += i[k] * at->stride[k];
			to += (p->lo[k] + i[k]) * dst_stride[k];
		}
		e = out + to * t->itemsize;
		from -= p->run_lo; /* of a run, only that is stored */
		rc = dcp_source_read(&at->src, at->off + from * t->itemsize, e, t->itemsize);
		if (rc < 0)
			return dcp_fail_at(err, rc, at->off, "element %" PRIu64 " lies outside",
					   run);
		if (at->swap)
			dcp_swap(dcp_dtype_swap_unit(t->dtype, t->itemsize), e, t->itemsize);
		if (at->filter == DCP_FILTER_CONJ || at->filter == DCP_FILTER_NEG)
			flip_signs(e, t->itemsize, dcp_dtype_info(t->dtype)->swap_unit,
				   at->filter == DCP_FILTER_CONJ);
		for (uint32_t k = t->ndim; k-- > 0;) {
			if (++i[k] < p->len[k])
				break;
			i[k] = 0;
		}
	}
	return 0;
}

static int read_piece(const struct t_sink *s, const struct dcp_tensor *t,
		      const struct dcp_piece *p, char *out, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf buf = DCP_BUF_INIT;
	struct dcp_source file, window;
	dcp_auto_blob struct dcp_blob blob = { 0 };
	struct place at;
	int rc = dcp_site_open(&s->dir->at, s->file[p->file], &blob, NULL, err);

	if (rc < 0)
		return rc;
	file = dcp_source_blob(&blob);
	rc = locate_piece(t, p, &file, &window, &buf, &at, err);
	return rc < 0 ? rc : gather_piece(t, p, &at, out, err);
}

char *t_sink_read(const struct t_sink *s, const struct dcp_tensor *t, size_t *n,
		  struct dcp_err *err)
{
	uint64_t nbytes;
	char *out;

	if (t->error) {
		dcp_fail(err, -EIO, "%s", t->error);
		return NULL;
	}
	assert_true(dcp_tensor_nbytes(t, &nbytes) && nbytes <= (uint64_t)MOST * 64);
	*n = (size_t)nbytes;
	out = calloc(*n + 1, 1);
	assert_non_null(out);
	for (size_t i = 0; i < t->npieces; i++)
		if (read_piece(s, t, &t->pieces[i], out, err) < 0) {
			free(out);
			return NULL;
		}
	return out;
}

int t_sink_open(struct t_sink *s, const char *path, struct dcp_dir *dir,
		const struct dcp_format **format, struct dcp_err *err)
{
	struct dcp_load in = { .dir = dir, .formats = dcp_formats, .sink = &s->sink };
	enum dcp_match match;

	if (dcp_dir_open(path, dir, err) < 0)
		fail_msg("%s", err->msg);
	if (!*format)
		*format = dcp_format_probe(dir, &match, NULL, 0);
	assert_non_null(*format);
	t_sink_init(s, dir);
	return (*format)->load(&in, err);
}

void t_sink_close(struct t_sink *s, struct dcp_dir *dir)
{
	t_sink_finish(s);
	dcp_dir_close(dir);
}

void t_sink_load(const struct t_dir *tree, struct dcp_dir *dir, struct t_sink *s)
{
	const struct dcp_format *format = NULL;
	struct dcp_err err = { 0 };

	if (t_sink_open(s, tree->root, dir, &format, &err) < 0)
		fail_msg("%s", err.msg);
}
