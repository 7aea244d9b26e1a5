/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the records of storage_metadata to arrays: each data file is opened once, what its
 * records need is noted, and the rest is forgotten before the next one. A file that cannot be
 * read is the error of its records, so that other copies of a piece can stand in for it.
 *
 * Arrays of keys that no metadata names are emitted as broken keys: the metadata is older than the
 * file.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/paddle/dist/dist_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/pyjson/pyjson.h"

/* @a in memory of its own; what is wrong with it, with the name of its file. */
static int keep_array(struct dcp_pdist *d, const char *file, const struct dcp_parray *a,
		      struct dcp_parray *to)
{
	char text[512];

	*to = *a;
	if (a->error) {
		snprintf(text, sizeof(text), "%.255s: %.200s", file, a->error);
		to->error = dcp_arena_strdup(&d->kept, text);
		return to->error ? 0 : -ENOMEM;
	}
	to->dtype_name = dcp_arena_strdup(&d->kept, a->dtype_name);
	to->shape = dcp_arena_dup(&d->kept, a->shape, a->ndim, sizeof(*a->shape));
	if (a->stride)
		to->stride = dcp_arena_dup(&d->kept, a->stride, a->ndim, sizeof(*a->stride));
	to->part = dcp_arena_dup(&d->kept, a->part, a->nparts, sizeof(*a->part));
	return to->dtype_name && to->shape && !a->stride == !to->stride && to->part ? 0
										    : -ENOMEM;
}

/* All records of @file fail for the same reason. */
static int fail_records(struct dcp_pdist *d, uint32_t file, const char *why)
{
	const char *kept = dcp_arena_strdup(&d->kept, why);
	uint32_t i = dcp_pmeta_head(&d->meta, file);

	dcp_log(d->in->log, DCP_LOG_WARN, "%s", why);
	for (; i != DCP_PMETA_NONE; i = dcp_pmeta_record(&d->meta, i)->next_in_file)
		dcp_pdist_loc(d, i)->error = kept;
	return kept ? 0 : -ENOMEM;
}

static int find_records(struct dcp_pdist *d, uint32_t file, const struct dcp_pfile *f)
{
	const char *name = dcp_intern_text(&d->meta.files, file), *lacks;
	uint32_t i = dcp_pmeta_head(&d->meta, file);
	char text[512];
	int rc = 0;

	snprintf(text, sizeof(text), "%.255s holds no array of that key, %.100s says it does",
		 name, d->meta_name);
	lacks = dcp_arena_strdup(&d->kept, text);
	while (lacks && rc == 0 && i != DCP_PMETA_NONE) {
		const struct dcp_pmeta_record *r = dcp_pmeta_record(&d->meta, i);
		const char *key = dcp_intern_text(&d->meta.names, r->key);
		const struct dcp_parray *a = dcp_pfile_find(f, key, strlen(key));

		if (a)
			rc = keep_array(d, name, a, dcp_pdist_loc(d, i));
		else
			dcp_pdist_loc(d, i)->error = lacks;
		i = r->next_in_file;
	}
	return lacks ? rc : -ENOMEM;
}

/* ---- what metadata does not name ---- */

static bool is_named(const struct dcp_pdist *d, const char *key)
{
	uint32_t i = dcp_intern_find(&d->meta.names, key, strlen(key));

	return i != DCP_INTERN_NONE && dcp_pmeta_key(&d->meta, i)->named;
}

/* 1: it was not emitted before. */
static int is_new(struct dcp_intern *emitted, const char *key)
{
	int rc = dcp_intern_str(emitted, key, NULL);

	return rc < 0 ? -ENOMEM : rc;
}

static int emit_stray(struct dcp_pdist *d, const char *key, const char *file,
		      const struct dcp_parray *a)
{
	struct dcp_tensor t = {
		.key = key,
		.path = &t.key,
		.npath = 1,
		.dtype = a->dtype,
		.dtype_name = a->dtype_name,
		.itemsize = a->itemsize,
		.ndim = a->ndim,
		.shape = a->shape,
	};
	char why[512];
	int rc = is_named(d, key) ? 0 : is_new(&d->strays, key);

	if (rc != 1)
		return rc;
	snprintf(why, sizeof(why),
		 "%.255s holds a piece of it, but %.100s does not say of what: is the metadata "
		 "that of an earlier save?",
		 file, d->meta_name);
	t.error = why;
	return dcp_emit_tensor(d->in->sink, &t);
}

static int emit_strays(struct dcp_pdist *d, const char *file, const struct dcp_pfile *f)
{
	const struct dcp_parray *all = DCP_ITEMS(f->arrays, struct dcp_parray);
	int rc = 0;

	for (uint32_t i = 0; i < f->names.n && rc == 0; i++)
		if (!all[i].slice && !all[i].error)
			rc = emit_stray(d, dcp_intern_text(&f->names, i), file, &all[i]);
	return rc;
}

/* A value in a data file that is not an array: every rank has its own, the first one's is shown. */
static int emit_other(void *ctx, const char *key, struct dcp_pv v)
{
	struct dcp_pdist *d = ctx;
	dcp_auto_buf struct dcp_buf json = DCP_BUF_INIT;
	struct dcp_object o = { .key = key, .path = &o.key, .npath = 1 };
	uint64_t left = UINT64_MAX;
	int rc = is_named(d, key) ? 0 : is_new(&d->objects, key);

	if (rc != 1)
		return rc;
	if (dcp_pyjson_object(&json, NULL, v, o.path, 1, &left, &o) < 0)
		return -ENOMEM;
	return dcp_emit_object(d->in->sink, &o);
}

/* ---- files ---- */

/* Data written much later than its metadata is of another save. Ranks of one save may be some
 * minutes apart, and copying stirs times up within seconds. */
static int compare_times(struct dcp_pdist *d, const char *name)
{
	struct dcp_file_id meta, data;
	char text[512];
	int64_t seconds;

	dcp_dir_note(d->in->dir, d->meta_name);
	if (d->late || dcp_site_id(&d->in->dir->at, d->meta_name, &meta) < 0 ||
	    dcp_site_id(&d->in->dir->at, name, &data) < 0)
		return 0;
	seconds = dcp_file_time(data.mtime_ns).tv_sec - dcp_file_time(meta.mtime_ns).tv_sec;
	d->late = seconds > 600;
	if (!d->late)
		return 0;
	snprintf(text, sizeof(text),
		 "%.255s was written %lld seconds after %.100s: it may be of another save",
		 name, (long long)seconds, d->meta_name);
	dcp_log(d->in->log, DCP_LOG_WARN, "%s", text);
	return dcp_emit_meta(d->in->sink, "warning", text);
}

static int read_file(struct dcp_pdist *d, uint32_t file)
{
	const char *name = dcp_intern_text(&d->meta.files, file);
	struct dcp_pfile f = { .other = emit_other, .ctx = d };
	struct dcp_err why = { 0 };
	dcp_auto_input struct dcp_input in = { 0 };
	uint32_t number;
	uint64_t rank, uid;
	int rc = dcp_emit_file(d->in->sink, name, &number);

	if (rc < 0)
		return rc;
	if (dcp_buf_add(&d->numbers, &number, sizeof(number)) < 0)
		return -ENOMEM;
	if (dcp_pdist_is_data(name, &rank, &uid) && rank >= d->ranks)
		d->ranks = rank + 1;
	rc = dcp_dir_input(d->in->dir, name, &in, &why);
	if (rc < 0)
		return rc == -ENOMEM ? -ENOMEM : fail_records(d, file, why.msg);
	rc = dcp_pfile_read(&f, &in.src, &why);
	if (rc == 0)
		rc = find_records(d, file, &f);
	else if (rc != -ENOMEM && why.msg[0])
		rc = fail_records(d, file, (dcp_err_where(&why, rc, "%.255s", name), why.msg));
	if (rc == 0)
		rc = emit_strays(d, name, &f);
	if (rc == 0)
		rc = dcp_emit_metadata(d->in->sink, name, &f.header);
	if (rc == 0)
		rc = compare_times(d, name);
	dcp_pfile_finish(&f);
	return rc;
}

int dcp_pdist_read_files(struct dcp_pdist *d)
{
	uint32_t n = dcp_pmeta_nrecords(&d->meta);
	int rc = dcp_buf_at(&d->locs, n, sizeof(struct dcp_parray)) ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < d->meta.files.n && rc == 0; i++) {
		rc = read_file(d, i);
		dcp_load_progress(d->in, i + 1, d->meta.files.n, "files");
	}
	return rc;
}
