/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paddle.distributed.save_state_dict, from 2.6 on:
 *
 *	{uid}.metadata            which pieces every tensor has, and which file holds them
 *	{rank}_{uid}.distcp       a rank's pieces: a pickle of numpy arrays, or safetensors
 *	{rank}_{uid}.safetensors  the same (3.3)
 *	{uid}.metadata.lock       while the metadata is being written
 *
 * A directory may hold several saves, one for each unique id. Files of one uid are one version.
 * Names are matched as a whole and ids are compared as numbers, while Paddle itself takes any name
 * that ends in the id.
 *
 * No file records the number of ranks, or that all ranks are done. So the metadata is the commit
 * mark, and if a data file that it names is missing, the keys in that file are broken.
 */
#include "core/format/paddle/dist/dist_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/formats.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/pyjson/pyjson.h"

/* filename: the parts of the names of data files and metadata files. */

/* "{uid}.metadata" */
static bool dcp_paddle_dist_is_meta(const char *name, uint64_t *uid)
{
	return dcp_take_number(&name, NULL, 18, uid) && strcmp(name, ".metadata") == 0;
}

/* "{rank}_{uid}.distcp" or ".safetensors" */
static bool dcp_paddle_dist_is_data(const char *name, uint64_t *rank, uint64_t *uid)
{
	return dcp_take_number(&name, NULL, 18, rank) && *name++ == '_' &&
	       dcp_take_number(&name, NULL, 18, uid) &&
	       (strcmp(name, ".distcp") == 0 || strcmp(name, ".safetensors") == 0);
}

/* The id in the name of a data or metadata file. @proof: no other program writes such a name; false
 * for .safetensors. */
static bool dcp_paddle_dist_uid(const char *name, uint64_t *uid, bool *meta, bool *proof)
{
	uint64_t rank;
	const char *p = name;

	*meta = dcp_paddle_dist_is_meta(name, uid);
	*proof = true;
	if (*meta || (dcp_take_number(&p, NULL, 18, uid) && strcmp(p, ".metadata.lock") == 0))
		return true;
	*proof = !strstr(name, ".safetensors");
	return dcp_paddle_dist_is_data(name, &rank, uid);
}

static void count_uid(uint64_t *n, uint64_t *newest, uint64_t uid)
{
	/* callers only need to know whether there are several */
	if (*n == 0 || uid != *newest)
		++*n;
	if (*n == 1 || uid > *newest)
		*newest = uid;
}

bool dcp_paddle_dist_names(const struct dcp_dir *dir, struct dcp_paddle_dist_names *out)
{
	struct dcp_paddle_dist_names s = { 0 };
	uint64_t any = 0, meta_newest = 0, data_newest = 0;
	bool proven = false;

	for (size_t i = 0; i < dir->n; i++) {
		uint64_t uid;
		bool meta, proof;

		if (dir->entries[i].is_dir ||
		    !dcp_paddle_dist_uid(dir->entries[i].name, &uid, &meta, &proof))
			continue;
		proven |= proof;
		count_uid(&s.nuids, &any, uid);
		if (meta)
			count_uid(&s.nmeta, &meta_newest, uid);
		else
			count_uid(&s.ndata, &data_newest, uid);
	}
	s.newest = s.nmeta ? meta_newest : any;
	s.merged = s.nmeta > 1 && s.ndata == 1;
	if (s.merged)
		s.newest = data_newest;
	*out = s;
	return proven;
}

/*
 * Finds the arrays of the records of storage_metadata. Each data file is opened once, the arrays of
 * its records are kept, and the rest is freed before the next file. If a file cannot be read, only
 * its records have an error, so that other copies of a piece can replace them.
 *
 * Arrays of keys that no metadata names are emitted as broken keys: the metadata is older than the
 * file.
 */

/* Copy @a into memory of its own, and put the name of its file in front of its error. */
static int keep_array(struct dcp_paddle_dist *d, const char *file,
		      const struct dcp_paddle_array *a, struct dcp_paddle_array *to)
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

/* Make @why the error of all records of @file. */
static int fail_records(struct dcp_paddle_dist *d, uint32_t file, const char *why)
{
	const char *kept = dcp_arena_strdup(&d->kept, why);
	uint32_t i = dcp_paddle_meta_head(&d->meta, file);

	dcp_log(d->in->log, DCP_LOG_WARN, "%s", why);
	for (; i != DCP_PADDLE_META_NONE; i = dcp_paddle_meta_record(&d->meta, i)->next_in_file)
		dcp_paddle_dist_loc(d, i)->error = kept;
	return kept ? 0 : -ENOMEM;
}

static int find_records(struct dcp_paddle_dist *d, uint32_t file,
			const struct dcp_paddle_file *f)
{
	const char *name = dcp_intern_text(&d->meta.files, file), *lacks;
	uint32_t i = dcp_paddle_meta_head(&d->meta, file);
	char text[512];
	int rc = 0;

	snprintf(text, sizeof(text), "%.255s holds no array of that key, %.100s says it does",
		 name, d->meta_name);
	lacks = dcp_arena_strdup(&d->kept, text);
	while (lacks && rc == 0 && i != DCP_PADDLE_META_NONE) {
		const struct dcp_paddle_meta_record *r = dcp_paddle_meta_record(&d->meta, i);
		const char *key = dcp_intern_text(&d->meta.names, r->key);
		const struct dcp_paddle_array *a = dcp_paddle_file_find(f, key, strlen(key));

		if (a)
			rc = keep_array(d, name, a, dcp_paddle_dist_loc(d, i));
		else
			dcp_paddle_dist_loc(d, i)->error = lacks;
		i = r->next_in_file;
	}
	return lacks ? rc : -ENOMEM;
}

/* ---- keys that metadata does not name ---- */

static bool is_named(const struct dcp_paddle_dist *d, const char *key)
{
	uint32_t i = dcp_intern_find(&d->meta.names, key, strlen(key));

	return i != DCP_INTERN_NONE && dcp_paddle_meta_key(&d->meta, i)->named;
}

/* 1: @key was not emitted before; 0: it was; -ENOMEM. */
static int is_new(struct dcp_intern *emitted, const char *key)
{
	int rc = dcp_intern_str(emitted, key, NULL);

	return rc < 0 ? -ENOMEM : rc;
}

static int emit_stray(struct dcp_paddle_dist *d, const char *key, const char *file,
		      const struct dcp_paddle_array *a)
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

static int emit_strays(struct dcp_paddle_dist *d, const char *file,
		       const struct dcp_paddle_file *f)
{
	const struct dcp_paddle_array *all = DCP_ITEMS(f->arrays, struct dcp_paddle_array);
	int rc = 0;

	for (uint32_t i = 0; i < f->names.n && rc == 0; i++)
		if (!all[i].slice && !all[i].error)
			rc = emit_stray(d, dcp_intern_text(&f->names, i), file, &all[i]);
	return rc;
}

/* Emit a value in a data file that is not an array. Every rank has its own; the first rank's is
 * shown. */
static int emit_other(void *ctx, const char *key, struct dcp_pv v)
{
	struct dcp_paddle_dist *d = ctx;
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

/* Report a data file that was written much later than its metadata: it is of another save. Times of
 * one save may differ by some minutes between ranks, and by seconds after copying. */
static int compare_times(struct dcp_paddle_dist *d, const char *name)
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

static int read_file(struct dcp_paddle_dist *d, uint32_t file)
{
	const char *name = dcp_intern_text(&d->meta.files, file);
	struct dcp_paddle_file f = { .other = emit_other, .ctx = d };
	struct dcp_err why = { 0 };
	dcp_auto_input struct dcp_input in = { 0 };
	uint32_t number;
	uint64_t rank, uid;
	int rc = dcp_emit_file(d->in->sink, name, &number);

	if (rc < 0)
		return rc;
	if (dcp_buf_add(&d->numbers, &number, sizeof(number)) < 0)
		return -ENOMEM;
	if (dcp_paddle_dist_is_data(name, &rank, &uid) && rank >= d->ranks)
		d->ranks = rank + 1;
	rc = dcp_dir_input(d->in->dir, name, &in, &why);
	if (rc < 0)
		return rc == -ENOMEM ? -ENOMEM : fail_records(d, file, why.msg);
	rc = dcp_paddle_file_read(&f, &in.src, &why);
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
	dcp_paddle_file_finish(&f);
	return rc;
}

/* Read all data files that metadata names, and find the arrays of its records. */
static int dcp_paddle_dist_read_files(struct dcp_paddle_dist *d)
{
	uint32_t n = dcp_paddle_meta_nrecords(&d->meta);
	int rc = dcp_buf_at(&d->locs, n, sizeof(struct dcp_paddle_array)) ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < d->meta.files.n && rc == 0; i++) {
		rc = read_file(d, i);
		dcp_load_progress(d->in, i + 1, d->meta.files.n, "files");
	}
	return rc;
}

#define ARENA ((size_t)1 << 30) /* the pieces of one key */
#define KEPT ((size_t)4 << 30)  /* the arrays of tens of millions of records */

static const struct dcp_dirent *find_meta(const struct dcp_dir *dir, uint64_t uid)
{
	for (size_t i = 0; i < dir->n; i++) {
		uint64_t is;

		if (!dir->entries[i].is_dir &&
		    dcp_paddle_dist_is_meta(dir->entries[i].name, &is) && is == uid)
			return &dir->entries[i];
	}
	return NULL;
}

/* ---- the family ---- */

static enum dcp_match probe_dist(const struct dcp_dir *dir, char *why, size_t n)
{
	const struct dcp_dirent *meta;
	struct dcp_paddle_dist_names s;

	if (!dcp_paddle_dist_names(dir, &s))
		return DCP_MATCH_NO;
	if (s.nuids > 1 && !s.merged)
		return DCP_MATCH_MANY;
	meta = find_meta(dir, s.newest);
	if (s.merged || (meta && meta->size > 0))
		return DCP_MATCH_YES;
	snprintf(why, n,
		 "%" PRIu64 ".metadata is %s: the save was interrupted or is still running",
		 s.newest, meta ? "empty" : "missing");
	return DCP_MATCH_INCOMPLETE;
}

static bool group_by_uid(const char *file, char *version)
{
	bool meta, proof;
	uint64_t uid;

	if (!dcp_paddle_dist_uid(file, &uid, &meta, &proof))
		return false;
	snprintf(version, DCP_GROUP_MAX, "%" PRIu64, uid);
	return true;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	const struct dcp_dirent *meta;
	struct dcp_paddle_dist_names s;

	if (!dcp_paddle_dist_names(dir, &s))
		return NULL;
	meta = find_meta(dir, s.newest);
	return meta ? meta->name : NULL;
}

/* ---- loading ---- */

static int read_meta(struct dcp_paddle_dist *d, const char *name)
{
	struct dcp_input in;
	uint32_t number;
	int rc = dcp_emit_file(d->in->sink, name, &number); /* before it is read */

	if (rc == 0)
		rc = dcp_dir_input(d->in->dir, name, &in, d->err);
	if (rc < 0)
		return rc;
	if (!d->meta_name)
		d->meta_name = name;
	rc = dcp_paddle_meta_read(&d->meta, &in.src, d->err);
	dcp_input_close(&in);
	if (rc == -EBADMSG)
		return dcp_err_where(d->err, rc,
				     "%s is damaged (copy it again, or use another version)",
				     name);
	return rc < 0 ? dcp_err_where(d->err, rc, "%s", name) : 0;
}

/* Read the metadata of the newest save, or of all ranks if each rank wrote its own. */
static int read_metas(struct dcp_paddle_dist *d, const struct dcp_paddle_dist_names *s)
{
	const struct dcp_dir *dir = d->in->dir;
	int rc = 0;

	for (size_t i = 0; i < dir->n && rc == 0; i++) {
		uint64_t uid;

		if (!dir->entries[i].is_dir &&
		    dcp_paddle_dist_is_meta(dir->entries[i].name, &uid) &&
		    (s->merged || uid == s->newest))
			rc = read_meta(d, dir->entries[i].name);
	}
	if (rc == 0 && !d->meta_name)
		rc = dcp_fail(d->err, -ENOENT, "%" PRIu64 ".metadata is missing", s->newest);
	return rc;
}

static int emit_facts(struct dcp_paddle_dist *d, const struct dcp_paddle_dist_names *s)
{
	const struct dcp_sink *sink = d->in->sink;
	const struct dcp_paddle_meta *m = &d->meta;
	char generation[2] = { m->generation, '\0' };
	int rc = dcp_emit_fact(sink, 0, "framework", "paddle");

	rc = dcp_emit_fact(sink, rc, "unique_id", "%" PRIu64, s->newest);
	rc = dcp_emit_fact(sink, rc, "world_files", "%" PRIu32, m->files.n);
	if (d->ranks)
		rc = dcp_emit_fact(sink, rc, "ranks", "%" PRIu64, d->ranks);
	rc = dcp_emit_fact(sink, rc, "metadata_generation", "%s", generation);
	rc = dcp_emit_fact(sink, rc, "model_type", "%s", m->model_type);
	rc = dcp_emit_fact(sink, rc, "checkpoint_version", "%s", m->version);
	rc = dcp_emit_fact(sink, rc, "paddle_commit", "%s", m->commit);
	if (d->noverlaps)
		rc = dcp_emit_fact(
			sink, rc, "overlaps",
			"pieces of %" PRIu64
			" key%s overlap, the first is %s: of elements stored more than once "
			"the piece listed last is shown, which is the one that Paddle loads; "
			"copies are not compared",
			d->noverlaps, dcp_s(d->noverlaps), d->overlaps);
	return rc;
}

static int emit_keys(struct dcp_paddle_dist *d)
{
	uint32_t n = d->meta.names.n;
	int rc = 0;

	for (uint32_t k = 0; k < n && rc == 0; k++) {
		rc = dcp_paddle_dist_emit_key(d, k);
		if (k % 1024 == 1023)
			dcp_load_progress(d->in, k + 1, n, "keys");
	}
	return rc;
}

static void finish_dist(struct dcp_paddle_dist *d)
{
	dcp_paddle_meta_finish(&d->meta);
	dcp_buf_finish(&d->locs);
	dcp_buf_finish(&d->numbers);
	dcp_buf_finish(&d->found);
	dcp_buf_finish(&d->pieces);
	dcp_join_finish(&d->join);
	dcp_intern_finish(&d->strays);
	dcp_intern_finish(&d->objects);
	dcp_arena_finish(&d->kept);
	dcp_arena_finish(&d->arena);
}

/* Load the newest save in @in->dir. */
static int load_newest(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_paddle_dist d = { .in = in, .err = err };
	struct dcp_paddle_dist_names s;
	int rc;

	if (!dcp_paddle_dist_names(in->dir, &s))
		return dcp_fail(err, -ENOENT, "no {uid}.metadata");
	dcp_arena_init(&d.arena, ARENA);
	dcp_arena_init(&d.kept, KEPT);
	rc = read_metas(&d, &s);
	if (rc == 0)
		rc = dcp_paddle_dist_read_files(&d);
	if (rc == 0)
		rc = emit_keys(&d);
	if (rc == 0)
		rc = emit_facts(&d, &s);
	finish_dist(&d);
	return rc;
}

const struct dcp_format dcp_format_paddle_dist = {
	.name = "paddle-dist",
	.what = "paddle.distributed.save_state_dict",
	.probe = probe_dist,
	.group = group_by_uid,
	.commit_file = commit_file,
	.load = load_newest,
};
