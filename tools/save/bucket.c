/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save into a bucket.
 *
 * An upload is invisible until it is completed, which happens when all parts of all files are there
 * (seal): first files with data, then files that the format generates, last the file that completes
 * the checkpoint. So a save that fails or is stopped before that leaves the old checkpoint, and
 * aborts its own uploads. Replaced objects are removed right before the first completion: a later
 * failure leaves an incomplete checkpoint, never a mixture of old and new files.
 *
 * Each file is written by one process, because two processes cannot write the same part.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/remote/remote.h"
#include "core/remote/s3.h"
#include "tools/save/save_int.h"

enum { ROUNDS = 1000 }; /* of aborting uploads that other saves left */

/* ---- may OUT be written? ---- */

static int split_place(struct save *s, struct dcp_err *err)
{
	struct save_uploads *u = s->uploads;
	const char *out = s->opts.out, *slash;
	int rc = dcp_bucket_of(out, &u->bucket, &u->key, err);
	size_t n = rc == 0 ? strlen(u->key) : 0;

	if (rc < 0)
		return rc;
	if (n && u->key[n - 1] == '/')
		u->key[--n] = '\0';
	slash = strrchr(u->key, '/');
	if (!n)
		return dcp_fail(err, -EINVAL,
				"%s: a checkpoint in a bucket needs a name there: %s/NAME", out,
				out);
	/* for messages: "s3://bucket/runs" and "step-5" */
	n = slash ? (size_t)(slash - u->key) : 0;
	if (snprintf(s->parent, sizeof(s->parent), "%s%.*s", u->bucket->base, (int)n, u->key) >=
		    (int)sizeof(s->parent) ||
	    snprintf(s->name, sizeof(s->name), "%s", slash ? slash + 1 : u->key) >=
		    (int)sizeof(s->name))
		return dcp_fail(err, -ENAMETOOLONG, "%s: %s", out, strerror(ENAMETOOLONG));
	n = strlen(s->parent);
	if (s->parent[n - 1] == '/')
		s->parent[n - 1] = '\0';
	return 0;
}

static int note_old(struct save_uploads *u, const char *prefix, const char *name)
{
	char *key = NULL;

	if (asprintf(&key, "%s%s", prefix, name) < 0)
		return -ENOMEM;
	return dcp_buf_add(&u->old, &key, sizeof(key));
}

/* List the existing objects: keys into u->old. */
static int list_old(struct save *s, struct dcp_err *err)
{
	struct save_uploads *u = s->uploads;
	dcp_auto_free char *dir = NULL;
	struct dcp_listing *l = NULL;
	const char *within;
	size_t at = 0, n;
	int rc;

	if (asprintf(&dir, "%s/", u->key) < 0)
		return dcp_err_say(err, -ENOMEM);
	dcp_remote_distrust(u->bucket);
	rc = dcp_remote_list(u->bucket, u->key, true, true, &l, &within, err);
	dcp_remote_give(u->bucket, l);
	if (rc == 0 && !s->opts.file)
		return dcp_fail(err, -ENOTDIR, "%s/%s exists and is not a directory", s->parent,
				s->name);
	if (rc == 0)
		rc = note_old(u, "", u->key);
	if (s->opts.file)
		return rc == -ENOENT ? 0 : rc;
	if (rc != -ENOENT)
		return rc;
	l = NULL;
	rc = dcp_remote_list(u->bucket, dir, false, true, &l, &within, err);
	n = rc == 0 ? dcp_listing_below(l, within, &at) : 0;
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = note_old(u, dir, dcp_listing_at(l, at + i)->name + strlen(within));
	dcp_remote_give(u->bucket, l);
	return rc == -ENOENT ? 0 : rc;
}

struct leftover {
	struct save *s;
	size_t n;
	int rc;
	char begun[40];
};

static bool is_of_out(const struct save *s, const char *key)
{
	size_t n = strlen(s->uploads->key);

	return strncmp(key, s->uploads->key, n) == 0 &&
	       (s->opts.file ? !key[n] : key[n] == '/');
}

static int on_leftover(void *ctx, const char *key, const char *id, const char *begun)
{
	struct leftover *l = ctx;
	struct dcp_put put = { .what = DCP_PUT_ABORT, .key = key, .upload = id };

	if (!is_of_out(l->s, key))
		return 0;
	l->n++;
	snprintf(l->begun, sizeof(l->begun), "%s", begun);
	if (!l->s->opts.force)
		return -EBUSY;
	l->rc = save_put_all(l->s, &put, 1);
	free(put.got);
	return l->rc;
}

/* Check for unfinished uploads of OUT, of a running or a killed save. A server that does not list
 * uploads counts as having none. */
static int check_uploads(struct save *s, struct dcp_err *err)
{
	struct leftover l = { .s = s };
	int rc = 0;

	for (int i = 0; i < ROUNDS; i++) {
		size_t before = l.n;

		rc = dcp_bucket_uploads(s->uploads->bucket, s->uploads->key, on_leftover, &l,
					NULL);
		if (rc != 0 || l.n == before)
			break;
	}
	if (l.rc < 0) {
		return save_fail(s, l.rc, s->name, err);
	}
	if (rc != -EBUSY)
		return 0;
	return dcp_fail(err, -EBUSY,
			"%s/%s: an upload of %s is not ended: another process is writing it, "
			"or one was killed; --force aborts it",
			s->parent, s->name, l.begun);
}

/* Only objects that dcpfs wrote are replaced, because only they can be written again. */
static int check_replaced(struct save *s, struct dcp_err *err)
{
	struct dcp_buf *old = &s->uploads->old;
	char *const *key = DCP_ITEMS(*old, char *);
	size_t n = DCP_NITEMS(*old, char *);
	struct dcp_put look[SAVE_BATCH];
	int rc = 0;

	for (size_t i = 0, some; i < n && rc == 0 && !s->opts.overwrite; i += some) {
		some = DCP_MIN(n - i, (size_t)SAVE_BATCH);
		for (size_t k = 0; k < some; k++)
			look[k] = (struct dcp_put){ .what = DCP_PUT_LOOK, .key = key[i + k] };
		rc = save_put_all(s, look, some);
		if (rc < 0)
			save_fail(s, rc, s->name, err);
		for (size_t k = 0; k < some; k++) {
			bool own = look[k].got && strcmp(look[k].got, DCP_BUCKET_OWN) == 0;

			free(look[k].got);
			if (rc == 0 && !own)
				rc = dcp_fail(err, -EEXIST,
					      "%s%s was not written by dcpfs, or written over "
					      "since, and would be lost; remove it first",
					      s->uploads->bucket->base, key[i + k]);
		}
	}
	return rc;
}

static int check_free(struct save *s, struct dcp_err *err)
{
	int rc = list_old(s, err);

	if (rc == 0 && s->uploads->old.n && !s->opts.force && !s->opts.overwrite)
		return dcp_fail(err, -EEXIST, "%s/%s exists already", s->parent, s->name);
	if (rc == 0)
		rc = check_replaced(s, err);
	return rc == 0 ? check_uploads(s, err) : rc;
}

static int create_uploads(struct save *s, struct dcp_err *err)
{
	struct save_uploads *u;
	const struct dcp_origin *row = dcp_origin_of(s->opts.out);
	int rc;

	if (row != &dcp_origin_s3 && row != &dcp_origin_gs)
		return dcp_fail(err, -ENOTSUP,
				"%s: a checkpoint is written to a directory, to s3:// or to "
				"gs://",
				s->opts.out);
	if (s->opts.resume || s->opts.direct)
		return dcp_fail(err, -EINVAL, "%s: --%s is for directories, not for buckets",
				s->opts.out, s->opts.resume ? "resume" : "direct");
	u = s->uploads = calloc(1, sizeof(*u));
	if (!u)
		return dcp_err_say(err, -ENOMEM);
	pthread_mutex_init(&u->lock, NULL);
	rc = split_place(s, err);
	return rc == 0 && save_leads(s) ? check_free(s, err) : rc;
}

/* ---- its functions ---- */

static int fail_no_file(struct save *s)
{
	return 0;
}

static int share_files(struct save *s, struct dcp_err *err)
{
	const struct save_run *r = save_runs(s);
	uint32_t ranks = DCP_MAX(s->opts.ranks, 1u);

	s->owner = calloc(save_nfiles(s) + 1, sizeof(*s->owner));
	if (!s->owner)
		return dcp_err_say(err, -ENOMEM);
	for (size_t i = 0; i < save_nruns(s); i++) {
		bool first = i == 0 || r[i - 1].file != r[i].file;
		uint32_t rank = ranks == 1         ? 0
				: s->opts.by_owner ? r[i].rank
						   : (uint32_t)((__uint128_t)r[i].at * ranks /
								DCP_MAX(s->data, 1u));

		if (first)
			s->owner[r[i].file] = rank;
		else if (s->opts.by_owner && ranks > 1 && s->owner[r[i].file] != rank && r[i].n)
			rank = UINT32_MAX;
		if (rank == UINT32_MAX)
			return dcp_fail(err, -ENOTSUP,
					"%s/%s: several ranks have what is in %s, and a "
					"bucket takes a file from one rank: write a format "
					"with a file for each rank (torch-dcp), or to a "
					"directory",
					s->parent, s->name, save_files(s)[r[i].file].name);
	}
	return 0;
}

static int plan_uploads(struct save *s, struct dcp_err *err)
{
	int rc = share_files(s, err);

	if (rc < 0)
		return rc;
	s->sums = calloc(s->npieces + 1, sizeof(*s->sums));
	rc = s->sums ? save_begin_uploads(s) : -ENOMEM;
	return rc < 0 ? save_fail(s, rc, s->name, err) : 0;
}

static int seal_uploads(struct save *s, struct dcp_err *err)
{
	struct save_uploads *u = s->uploads;
	int rc = s->opts.stop && *s->opts.stop ? -ECANCELED : 0;

	if (rc == 0)
		rc = check_replaced(s, err); /* another program may have written meanwhile */
	if (rc == -EEXIST)
		return rc;
	if (rc == 0)
		rc = save_delete_all(s, DCP_ITEMS(u->old, char *), DCP_NITEMS(u->old, char *));
	if (rc == 0)
		rc = save_complete_files(s, false);
	if (rc == 0)
		rc = save_complete_files(s, true);
	dcp_remote_distrust(u->bucket);
	snprintf(s->sealed, sizeof(s->sealed), "%s/%s", s->parent, s->name);
	return rc < 0 ? save_fail(s, rc, s->name, err) : 0;
}

static int publish_uploads(struct save *s, struct dcp_err *err)
{
	s->published = true;
	return 0;
}

static void destroy_uploads(struct save *s)
{
	struct save_uploads *u = s->uploads;
	char **old = u ? DCP_ITEMS(u->old, char *) : NULL;

	if (!u)
		return;
	if (!s->published && !u->handed && u->bucket)
		save_undo_uploads(s);
	for (size_t i = 0; i < DCP_NITEMS(u->old, char *); i++)
		free(old[i]);
	save_free_uploads(s);
	free(u->key);
	free(s->owner);
	dcp_buf_finish(&u->old);
	pthread_mutex_destroy(&u->lock);
	free(u);
	s->uploads = NULL;
}

const struct save_place save_bucket = {
	.create = create_uploads,
	.begin_file = fail_no_file,
	.own = save_upload_own,
	.end_file = fail_no_file,
	.planned = plan_uploads,
	.write = save_upload_bytes,
	.wrote = save_upload_wrote,
	.sync = save_upload_sync,
	.seal = seal_uploads,
	.publish = publish_uploads,
	.put = save_put_uploads,
	.take = save_take_uploads,
	.destroy = destroy_uploads,
};
