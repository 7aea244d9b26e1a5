/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was written, read back as a checkpoint of its own, or a file of a rank after the other, and compared with the source
 * byte for byte.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tools/export/export.h"

enum { CHUNK = 4 << 20 };

struct verifying {
	struct exporting *x;
	struct export_reader *reader;
	struct dcp_version *v;
	char *bufs; /* two chunks */
	uint64_t done, total;
};

static int differs(struct verifying *w, const struct dcp_write_tensor *t, const char *how)
{
	return dcp_fail(&w->x->err, -EBADMSG, DCP_ERR_NO_OFFSET,
			"%s: %s: what was written is not what was read: %s", w->x->out, t->key,
			how);
}

static int compare_bytes(struct verifying *w, size_t i, size_t part,
			 const struct dcp_view *view)
{
	const struct dcp_write_tensor *t = &w->x->set.tensors[i];
	uint64_t size = dcp_view_size(view);
	char text[64];

	for (uint64_t off = 0; off < size; off += CHUNK) {
		size_t n = (size_t)DCP_MIN(size - off, (uint64_t)CHUNK);
		int rc = dcp_view_read(view, off, w->bufs, n);

		if (rc == 0)
			rc = export_read(w->reader, i, part, off, w->bufs + CHUNK, n,
					 &w->x->err);
		if (rc < 0)
			return dcp_err_say(&w->x->err, rc);
		if (memcmp(w->bufs, w->bufs + CHUNK, n) != 0) {
			snprintf(text, sizeof(text), "bytes from %llu on",
				 (unsigned long long)off);
			return differs(w, t, text);
		}
		w->done += n;
		w->x->progress.report.report(w->x->progress.report.ctx, w->done, w->total,
					     t->key);
	}
	return 0;
}

static int compare_tensor(struct verifying *w, size_t i, size_t part)
{
	const struct dcp_write_tensor *t = &w->x->set.tensors[i];
	const struct dcp_write_part *p = part == EXPORT_WHOLE ? NULL : &t->parts[part];
	uint32_t ndim = p ? p->ndim : t->ndim;
	const uint64_t *shape = p ? p->shape : t->shape;
	dcp_auto_view struct dcp_view *view = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 24);
	struct dcp_row row;
	int rc =
		dcp_index_by_key(dcp_version_index(w->v), DCP_ROW_TENSOR, t->key, &arena, &row);

	if (rc == -ENOENT)
		rc = differs(w, t, "it has no such key");
	else if (rc == 0 && (row.dtype != t->dtype || row.ndim != ndim ||
			     memcmp(row.shape, shape, ndim * sizeof(*shape)) != 0))
		rc = differs(w, t, "another dtype or shape");
	if (rc == 0)
		rc = dcp_view_open(w->v, row.id, DCP_AS_RAW, NULL, &view, &w->x->err);
	if (rc == 0)
		rc = compare_bytes(w, i, part, view);
	return rc;
}

/* Compare the tensors that are in the checkpoint at @path: all, or (@rank not NULL) what that rank has. */
static int compare(struct verifying *w, const char *path, const uint32_t *rank)
{
	const struct dcp_store_opts opts = { .log = &cmd_log };
	const struct dcp_write_set *set = &w->x->set;
	struct dcp_scan scan = { 0 };
	int rc = dcp_scan(path, &scan, &w->x->err);

	if (rc == 0 && (scan.n != 1 || !scan.found[0].complete))
		rc = dcp_fail(&w->x->err, -EBADMSG, DCP_ERR_NO_OFFSET,
			      "%s: what was written is not one complete checkpoint",
			      rank ? path : w->x->out);
	if (rc == 0)
		rc = dcp_version_open(path, &scan.found[0], &opts, &w->v, &w->x->err);
	for (size_t i = 0; rc == 0 && i < set->ntensors; i++) {
		size_t part = rank ? dcp_write_part_of(set, i, *rank) : EXPORT_WHOLE;

		if (!rank || part != SIZE_MAX)
			rc = compare_tensor(w, i, part);
	}
	dcp_version_close(w->v);
	w->v = NULL;
	dcp_scan_finish(&scan);
	return rc;
}

/* The file of each rank that has any bytes. */
static int compare_ranks(struct verifying *w)
{
	const struct dcp_write_set *set = &w->x->set;
	const char *file, *last = NULL;
	size_t tensor, part;
	int rc = 0;

	for (size_t i = 0; rc == 0 && (file = save_run_at(w->x->save, i, &tensor, &part));
	     i++) {
		dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;

		if (file == last || tensor >= set->ntensors)
			continue;
		last = file;
		dcp_buf_printf(&path, "%s/%s", save_sealed(w->x->save), file);
		rc = dcp_err_say(&w->x->err, dcp_buf_error(&path));
		if (rc == 0)
			rc = compare(w, path.p, &set->tensors[tensor].parts[part].rank);
	}
	return rc;
}

int export_verify(struct exporting *x)
{
	struct verifying w = { .x = x };
	int rc = dcp_err_say(&x->err, export_reader(x, &w.reader));

	w.bufs = malloc(2 * (size_t)CHUNK);
	if (rc == 0 && !w.bufs)
		rc = dcp_err_say(&x->err, -ENOMEM);
	for (size_t i = 0; i < x->set.ntensors; i++)
		for (size_t k = 0; k < x->set.tensors[i].nparts; k++)
			w.total += dcp_write_part_bytes(&x->set.tensors[i],
							&x->set.tensors[i].parts[k]);
	if (rc == 0)
		rc = x->set.arrays ? compare_ranks(&w)
				   : compare(&w, save_sealed(x->save), NULL);
	free(w.bufs);
	export_close(w.reader);
	return rc;
}
