/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paddle.distributed.save_state_dict, from 2.6 on:
 *
 *	{uid}.metadata            which pieces every tensor has, and which file holds them
 *	{rank}_{uid}.distcp       a rank's pieces: a pickle of numpy arrays, or safetensors
 *	{rank}_{uid}.safetensors  the same (3.3)
 *	{uid}.metadata.lock       while the metadata is being written
 *
 * A directory may hold several saves, one for each unique id. Files of one uid are one version;
 * names are matched whole and ids compared as numbers, where Paddle itself takes any name
 * that ends in the id.
 *
 * Nothing is said of how many ranks there were, or that all of them are done: metadata is the
 * commit mark, and a data file that it names and that was not written is the error of its keys.
 */
#include <inttypes.h>
#include <stdio.h>

#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/paddle/dist/dist_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"

#define ARENA ((size_t)1 << 30) /* the pieces of one key */
#define KEPT ((size_t)4 << 30)  /* the arrays of tens of millions of records */

static const struct dcp_dirent *find_meta(const struct dcp_dir *dir, uint64_t uid)
{
	for (size_t i = 0; i < dir->n; i++) {
		uint64_t is;

		if (!dir->entries[i].is_dir && dcp_pdist_is_meta(dir->entries[i].name, &is) &&
		    is == uid)
			return &dir->entries[i];
	}
	return NULL;
}

/* ---- the family ---- */

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	const struct dcp_dirent *meta;
	struct dcp_pdist_names s;

	if (!dcp_pdist_names(dir, &s))
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

static bool group(const char *file, char *version)
{
	bool meta, proof;
	uint64_t uid;

	if (!dcp_pdist_uid(file, &uid, &meta, &proof))
		return false;
	snprintf(version, DCP_GROUP_MAX, "%" PRIu64, uid);
	return true;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	const struct dcp_dirent *meta;
	struct dcp_pdist_names s;

	if (!dcp_pdist_names(dir, &s))
		return NULL;
	meta = find_meta(dir, s.newest);
	return meta ? meta->name : NULL;
}

/* ---- loading ---- */

static int read_meta(struct dcp_pdist *d, const char *name)
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
	rc = dcp_pmeta_read(&d->meta, &in.src, d->err);
	dcp_input_close(&in);
	if (rc == -EBADMSG)
		return dcp_err_where(d->err, rc,
				     "%s is damaged (copy it again, or use another version)",
				     name);
	return rc < 0 ? dcp_err_where(d->err, rc, "%s", name) : 0;
}

/* The metadata of the newest save; of all ranks when each wrote its own. */
static int read_metas(struct dcp_pdist *d, const struct dcp_pdist_names *s)
{
	const struct dcp_dir *dir = d->in->dir;
	int rc = 0;

	for (size_t i = 0; i < dir->n && rc == 0; i++) {
		uint64_t uid;

		if (!dir->entries[i].is_dir && dcp_pdist_is_meta(dir->entries[i].name, &uid) &&
		    (s->merged || uid == s->newest))
			rc = read_meta(d, dir->entries[i].name);
	}
	if (rc == 0 && !d->meta_name)
		rc = dcp_fail(d->err, -ENOENT, "%" PRIu64 ".metadata is missing", s->newest);
	return rc;
}

static int emit_facts(struct dcp_pdist *d, const struct dcp_pdist_names *s)
{
	const struct dcp_sink *sink = d->in->sink;
	const struct dcp_pmeta *m = &d->meta;
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

static int emit_keys(struct dcp_pdist *d)
{
	uint32_t n = d->meta.names.n;
	int rc = 0;

	for (uint32_t k = 0; k < n && rc == 0; k++) {
		rc = dcp_pdist_emit_key(d, k);
		if (k % 1024 == 1023)
			dcp_load_progress(d->in, k + 1, n, "keys");
	}
	return rc;
}

static void finish(struct dcp_pdist *d)
{
	dcp_pmeta_finish(&d->meta);
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

/* The newest save of @in->dir. */
static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_pdist d = { .in = in, .err = err };
	struct dcp_pdist_names s;
	int rc;

	if (!dcp_pdist_names(in->dir, &s))
		return dcp_fail(err, -ENOENT, "no {uid}.metadata");
	dcp_arena_init(&d.arena, ARENA);
	dcp_arena_init(&d.kept, KEPT);
	rc = read_metas(&d, &s);
	if (rc == 0)
		rc = dcp_pdist_read_files(&d);
	if (rc == 0)
		rc = emit_keys(&d);
	if (rc == 0)
		rc = emit_facts(&d, &s);
	finish(&d);
	return rc;
}

const struct dcp_format dcp_format_paddle_dist = {
	.name = "paddle-dist",
	.what = "paddle.distributed.save_state_dict",
	.probe = probe,
	.group = group,
	.commit_file = commit_file,
	.load = load,
};
