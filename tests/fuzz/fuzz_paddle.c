/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the metadata and as a data file of a Paddle checkpoint; those that start with
 * "PD" and a length are both, consecutive, and loaded from a directory. No crash, no
 * leak, a reason with every refusal, and whatever is told is well formed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/format/paddle/dist/dist_int.h"
#include "core/model/geometry/tiling.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/parse/pyjson/pyjson.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

/* ---- the two parsers ---- */

static void check_chains(const struct dcp_paddle_meta *m)
{
	uint64_t ndims = m->dims.n / sizeof(uint64_t);

	for (uint32_t k = 0; k < m->names.n; k++) {
		const struct dcp_paddle_meta_key *key = dcp_paddle_meta_key(m, k);

		must(key->error == DCP_PADDLE_META_NONE || key->error < m->errors.n);
		must(!key->npath || key->path < m->paths.n);
		for (uint32_t i = key->entry; i != DCP_PADDLE_META_NONE;) {
			const struct dcp_paddle_meta_entry *e = dcp_paddle_meta_entry(m, i);

			must(e->box.ndim <= DCP_MAX_NDIM);
			must(dcp_range_ok(e->box.lo, e->box.ndim, ndims));
			must(dcp_range_ok(e->box.len, e->box.ndim, ndims));
			must(e->shape == DCP_PADDLE_META_NO_DIMS ||
			     dcp_range_ok(e->shape, e->box.ndim, ndims));
			i = e->next;
		}
	}
	for (uint32_t i = 0; i < dcp_paddle_meta_nrecords(m); i++) {
		const struct dcp_paddle_meta_record *r = dcp_paddle_meta_record(m, i);

		must(r->key < m->names.n && r->file < m->files.n);
		must(!strchr(dcp_intern_text(&m->files, r->file), '/'));
	}
}

static void as_metadata(const struct dcp_source *src)
{
	struct dcp_paddle_meta m = { 0 };

	for (int i = 0; i < 2; i++) {
		struct dcp_err err = { 0 };
		int r = dcp_paddle_meta_read(&m, src, &err);

		must(r == 0 || (r < 0 && err.code == r && err.msg[0]));
		if (r < 0)
			break;
		check_chains(&m);
	}
	dcp_paddle_meta_finish(&m);
}

static int other(void *ctx, const char *key, struct dcp_pv v)
{
	(void)ctx;
	must(key && dcp_pyjson_type(v)[0]);
	return 0;
}

static void check_array(const struct dcp_paddle_array *a, uint64_t size)
{
	uint64_t volume, sum = 0;

	if (a->error)
		return;
	must(a->ndim <= DCP_MAX_NDIM && a->itemsize && a->dtype_name);
	must(dcp_shape_volume(a->shape, a->ndim, &volume));
	for (size_t i = 0; i < a->nparts; i++) {
		const struct dcp_paddle_part *p = &a->part[i];

		must(dcp_range_ok(p->off, p->nbytes, size));
		must(p->filter != DCP_FILTER_NONE || p->nbytes == p->n * a->itemsize);
		sum += p->n;
	}
	must(sum == volume);
}

static void as_file(const struct dcp_source *src)
{
	struct dcp_paddle_file f = { .other = other };
	struct dcp_err err = { 0 };
	int r = dcp_paddle_file_read(&f, src, &err);

	must(r == 0 || (r < 0 && err.code == r && err.msg[0]));
	for (uint32_t i = 0; r == 0 && i < f.names.n; i++)
		check_array((const struct dcp_paddle_array *)(const void *)f.arrays.p + i,
			    src->size);
	dcp_paddle_file_finish(&f);
}

/* ---- both ---- */

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	uint32_t *count = ctx;

	must(name[0] && name[0] != '/');
	*number = (*count)++;
	return 0;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	const uint32_t *count = ctx;
	struct dcp_arena arena;
	struct dcp_tiling tl;
	uint64_t nbytes;

	must(t->key && t->dtype_name && t->ndim <= DCP_MAX_NDIM && t->npath > 0);
	must(!t->error || (t->error[0] && t->npieces == 0));
	for (size_t i = 0; i < t->npieces; i++)
		must(t->pieces[i].file < *count && t->pieces[i].run_n > 0);
	if (t->error || !dcp_tensor_nbytes(t, &nbytes))
		return 0;
	dcp_arena_init(&arena, 1 << 20);
	(void)dcp_tiling_init(&tl, t, &arena, NULL);
	dcp_arena_finish(&arena);
	return 0;
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	(void)ctx;
	must(o->key && (o->json || o->error));
	return 0;
}

static int on_meta(void *ctx, const char *name, const char *value)
{
	(void)ctx;
	must(name[0] && value[0]);
	return 0;
}

static void put(int dirfd, const char *name, const uint8_t *p, size_t n)
{
	int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	must(fd >= 0 && write(fd, p, n) == (ssize_t)n);
	close(fd);
}

static void as_checkpoint(const uint8_t *data, size_t n, size_t nmeta)
{
	static char path[64];
	const struct dcp_format *format = &dcp_format_paddle_dist;
	uint32_t count = 0;
	struct dcp_sink sink = { .file = on_file,
				 .tensor = on_tensor,
				 .object = on_object,
				 .meta = on_meta,
				 .ctx = &count };
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct dcp_load in = { .dir = &dir, .sink = &sink };
	int r;

	if (!*path) {
		snprintf(path, sizeof(path), "/tmp/fuzz-paddle-%d", (int)getpid());
		must(mkdir(path, 0700) == 0);
	}
	r = open(path, O_RDONLY | O_DIRECTORY);
	must(r >= 0);
	put(r, "0.metadata", data, nmeta);
	put(r, "0_0.distcp", data + nmeta, n - nmeta);
	must(dcp_dir_open(path, &dir, &err) == 0);
	err = (struct dcp_err){ 0 };
	must(format->load(&in, &err) == 0 || (err.code < 0 && err.msg[0]));
	dcp_dir_close(&dir);
	unlinkat(r, "0.metadata", 0);
	unlinkat(r, "0_0.distcp", 0);
	close(r);
	rmdir(path);
	*path = '\0';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);

	if (n > 4 && data[0] == 'P' && data[1] == 'D') {
		size_t nmeta = (size_t)data[2] << 8 | data[3];

		as_checkpoint(data + 4, n - 4, nmeta < n - 4 ? nmeta : n - 4);
		return 0;
	}
	as_metadata(&src);
	as_file(&src);
	return 0;
}
