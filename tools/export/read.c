/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of an export, read through views of the source. A thread keeps its view open, since a
 * long part is read by several calls in a row. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/hf/hf.h"
#include "core/model/geometry/cut.h"
#include "core/model/layout/layout.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"
#include "tools/export/export.h"

struct reading {
	struct dcp_view *view;
	size_t tensor, part; /* that it shows */
	struct dcp_arena arena;
	char *stored; /* elements to be converted */
};

struct export_reader {
	struct exporting *x;
	struct reading job[SAVE_MAX_JOBS];
};

int export_reader(struct exporting *x, struct export_reader **out)
{
	struct export_reader *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->x = x;
	for (size_t i = 0; i < SAVE_MAX_JOBS; i++)
		dcp_arena_init(&r->job[i].arena, (size_t)64 << 20);
	*out = r;
	return 0;
}

void export_close(struct export_reader *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < SAVE_MAX_JOBS; i++) {
		dcp_view_close(r->job[i].view);
		dcp_arena_finish(&r->job[i].arena);
		free(r->job[i].stored);
	}
	free(r);
}

/* Extra number @i of a directory of Hugging Face. */
static struct dcp_hf_file file_of(const struct exporting *x, size_t i)
{
	size_t place = DCP_ITEMS(x->extra_from, uint64_t)[i];
	struct dcp_hf_file f = { 0 };

	dcp_hf_next_file(x->pick.ck.v, &place, &f);
	return f;
}

static int open_extra(const struct exporting *x, size_t i, struct dcp_view **out,
		      struct dcp_err *err)
{
	uint64_t number = DCP_ITEMS(x->extra_from, uint64_t)[i];

	return export_is_asset(x)
		       ? dcp_hf_open_asset(x->pick.ck.v, file_of(x, i).number, out, err)
		       : dcp_view_open_file(x->pick.ck.v, (uint32_t)number, out, err);
}

static int open_part(const struct exporting *x, struct reading *j, size_t tensor, size_t part,
		     struct dcp_err *err)
{
	const struct dcp_write_tensor *t = &x->set.tensors[tensor];
	const struct dcp_write_part *p = part == EXPORT_WHOLE ? NULL : &t->parts[part];
	const struct export_from *from = &DCP_ITEMS(x->from, struct export_from)[tensor];
	struct dcp_cut cut;
	int rc;

	if (!p || from->cut || dcp_write_is_whole(t, p))
		return dcp_view_open(x->pick.ck.v, from->row, DCP_AS_RAW, from->cut, &j->view,
				     err);
	if (p->lo) {
		rc = dcp_cut_box(&cut, t->ndim, p->lo, p->shape, &j->arena);
	} else {
		rc = dcp_layout_cut(x->layout, p->rank, t->key, t->ndim, t->shape, &j->arena,
				    &cut, err);
		rc = rc == 0 ? -ENOENT : rc; /* the key was there when the set was chosen */
	}
	return rc < 0 ? rc
		      : dcp_view_open(x->pick.ck.v, from->row, DCP_AS_RAW, &cut, &j->view, err);
}

static int get_view(const struct exporting *x, struct reading *j, size_t tensor, size_t part,
		    struct dcp_err *err)
{
	int rc;

	if (j->view && j->tensor == tensor && j->part == part)
		return 0;
	dcp_view_close(j->view);
	j->view = NULL;
	dcp_arena_reset(&j->arena);
	j->tensor = tensor;
	j->part = part;
	rc = tensor < x->set.ntensors ? open_part(x, j, tensor, part, err)
				      : open_extra(x, tensor - x->set.ntensors, &j->view, err);
	return rc < 0 ? dcp_err_say(err, rc) : 0;
}

/* Read bytes [off, off + n) of the elements as @to; both are multiples of an element. */
static int read_cast(struct reading *j, enum dcp_dtype from, enum dcp_dtype to, uint64_t off,
		     char *buf, size_t n)
{
	enum { AT_ONCE = 65536 }; /* elements */
	size_t fs = dcp_dtype_info(from)->size, ts = dcp_dtype_info(to)->size;

	if (!j->stored)
		j->stored = malloc(AT_ONCE * 16);
	if (!j->stored)
		return -ENOMEM;
	for (size_t done = 0; done < n;) {
		size_t count = DCP_MIN((n - done) / ts, (size_t)AT_ONCE);
		int rc = dcp_view_read(j->view, (off + done) / ts * fs, j->stored, count * fs);

		if (rc < 0)
			return rc;
		dcp_dtype_cast(from, to, buf + done, j->stored, count);
		done += count * ts;
	}
	return 0;
}

static bool is_cast(const struct exporting *x, size_t tensor)
{
	return tensor < x->set.ntensors &&
	       DCP_ITEMS(x->from, struct export_from)[tensor].dtype !=
		       x->set.tensors[tensor].dtype;
}

/* The text of an extra file that is generated; NULL: it is a file of the source. */
static const struct dcp_buf *text_of(const struct exporting *x, size_t tensor)
{
	const struct dcp_made *made = tensor >= x->set.ntensors && export_is_asset(x)
					      ? file_of(x, tensor - x->set.ntensors).made
					      : NULL;

	return made ? &made->text : NULL;
}

static int fail_read(const struct exporting *x, int rc, size_t tensor, struct dcp_err *err)
{
	const char *name = tensor < x->set.ntensors
				   ? x->set.tensors[tensor].key
				   : x->set.extras[tensor - x->set.ntensors].name;

	return dcp_fail(err, rc, "%s: %s: %s", x->pick.ck.name, name,
			rc == -ESTALE ? "a file of the checkpoint was changed meanwhile"
				      : dcp_err_noted(rc));
}

static int read_piece(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		      void *buf, size_t n, struct dcp_err *err)
{
	struct export_reader *r = ctx;
	const struct exporting *x = r->x;
	struct reading *j = &r->job[job];
	const struct dcp_buf *text = text_of(x, tensor);
	int rc;

	if (__atomic_load_n(&x->given_up, __ATOMIC_RELAXED))
		return dcp_err_say(err, -ECANCELED);
	if (text) {
		memcpy(buf, text->p + off, n);
		return 0;
	}
	rc = get_view(x, j, tensor, part, err);
	if (rc < 0)
		return rc;
	if (is_cast(x, tensor))
		rc = read_cast(j, DCP_ITEMS(x->from, struct export_from)[tensor].dtype,
			       x->set.tensors[tensor].dtype, off, buf, n);
	else
		rc = dcp_view_read(j->view, off, buf, n);
	return rc < 0 ? fail_read(x, rc, tensor, err) : 0;
}

static int copy_piece(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		      uint64_t n, int fd, uint64_t to, struct dcp_err *err)
{
	struct export_reader *r = ctx;
	bool made = is_cast(r->x, tensor) || text_of(r->x, tensor);
	int rc = made ? 0 : get_view(r->x, &r->job[job], tensor, part, err);

	if (__atomic_load_n(&r->x->given_up, __ATOMIC_RELAXED))
		rc = dcp_err_say(err, -ECANCELED);
	if (rc < 0 || made)
		return rc;
	rc = dcp_view_copy(r->job[job].view, off, n, fd, to);
	return rc < 0 ? fail_read(r->x, rc, tensor, err) : rc;
}

int export_read(struct export_reader *r, size_t tensor, size_t part, uint64_t off, void *buf,
		size_t n, struct dcp_err *err)
{
	return read_piece(r, 0, tensor, part, off, buf, n, err);
}

int export_said(void *ctx, const size_t *tensors, size_t n, const char **object)
{
	struct exporting *x = ((struct export_reader *)ctx)->x;
	const struct export_from *from = DCP_ITEMS(x->from, struct export_from);
	int rc = x->said ? 0 : dcp_said_create(dcp_version_index(x->pick.ck.v), &x->said);

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = dcp_said_add(x->said, from[tensors[i]].row);
	return rc < 0 ? rc : dcp_said_take(x->said, object);
}

int export_high(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n, uint64_t *count,
		struct dcp_err *err)
{
	unsigned char *buf = malloc(n);
	int rc = buf ? read_piece(ctx, 0, tensor, part, off, buf, n, err) : -ENOMEM;

	*count = 0;
	for (size_t i = 0; rc == 0 && i < n; i++)
		*count += buf[i] >= 0x80;
	free(buf);
	return dcp_err_say(err, rc);
}

struct save_source export_source(struct export_reader *r)
{
	return (struct save_source){ .read = read_piece, .copy = copy_piece, .ctx = r };
}
