/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was written, read back as a checkpoint of its own, and compared with the source byte for byte.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
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

static int compare_bytes(struct verifying *w, size_t i, const struct dcp_view *view)
{
	const struct dcp_write_tensor *t = &w->x->set.tensors[i];
	uint64_t size = dcp_view_size(view);
	char text[64];

	for (uint64_t off = 0; off < size; off += CHUNK) {
		size_t n = (size_t)DCP_MIN(size - off, (uint64_t)CHUNK);
		int rc = dcp_view_read(view, off, w->bufs, n);

		if (rc == 0)
			rc = export_read_whole(w->reader, i, off, w->bufs + CHUNK, n,
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

static int compare_tensor(struct verifying *w, size_t i)
{
	const struct dcp_write_tensor *t = &w->x->set.tensors[i];
	struct dcp_view *view = NULL;
	struct dcp_arena arena;
	struct dcp_row row;
	int rc;

	dcp_arena_init(&arena, (size_t)1 << 24);
	rc = dcp_index_by_key(dcp_version_index(w->v), DCP_ROW_TENSOR, t->key, &arena, &row);
	if (rc == -ENOENT)
		rc = differs(w, t, "it has no such key");
	else if (rc == 0 && (row.dtype != t->dtype || row.ndim != t->ndim ||
			     memcmp(row.shape, t->shape, t->ndim * sizeof(*t->shape)) != 0))
		rc = differs(w, t, "another dtype or shape");
	if (rc == 0)
		rc = dcp_view_open(w->v, row.id, DCP_AS_RAW, NULL, &view, &w->x->err);
	if (rc == 0)
		rc = compare_bytes(w, i, view);
	dcp_view_close(view);
	dcp_arena_finish(&arena);
	return rc;
}

static int open_written(struct verifying *w, struct dcp_scan *scan)
{
	const struct dcp_store_opts opts = { .log = &cmd_log };
	const char *path = save_sealed(w->x->save);
	int rc = dcp_scan(path, scan, &w->x->err);

	if (rc < 0)
		return rc;
	if (scan->n != 1 || !scan->found[0].complete)
		return dcp_fail(&w->x->err, -EBADMSG, DCP_ERR_NO_OFFSET,
				"%s: what was written is not one complete checkpoint",
				w->x->out);
	return dcp_version_open(path, &scan->found[0], &opts, &w->v, &w->x->err);
}

int export_verify(struct exporting *x)
{
	struct verifying w = { .x = x };
	struct dcp_scan scan = { 0 };
	int rc = open_written(&w, &scan);

	if (rc == 0)
		rc = dcp_err_say(&x->err, export_reader(x, &w.reader));
	w.bufs = malloc(2 * (size_t)CHUNK);
	if (rc == 0 && !w.bufs)
		rc = dcp_err_say(&x->err, -ENOMEM);
	for (size_t i = 0; i < x->set.ntensors; i++)
		for (size_t k = 0; k < x->set.tensors[i].nparts; k++)
			w.total += dcp_write_part_bytes(&x->set.tensors[i],
							&x->set.tensors[i].parts[k]);
	for (size_t i = 0; rc == 0 && i < x->set.ntensors; i++)
		rc = compare_tensor(&w, i);
	free(w.bufs);
	export_close(w.reader);
	dcp_version_close(w.v);
	dcp_scan_finish(&scan);
	return rc;
}
