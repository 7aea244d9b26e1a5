/* SPDX-License-Identifier: Apache-2.0 */
/* dcpfs warm: read a version ahead of its use, into the cache of bytes from servers, or into the
 * page cache. */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/model/layout/layout.h"
#include "core/remote/disk.h"
#include "core/remote/remote.h"
#include "core/store/layouts/layouts.h"
#include "core/store/view/view.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

enum {
	CHUNK = 16 << 20, /* of a tensor at a time: two requests */
	JOBS = 8,
	MAX_JOBS = 64,
};

struct warm_opts {
	int form;
	struct opt_texts keys;
	const char *layout, *rank;
	uint64_t jobs;
	struct pick_opts pick;
};

#define AT(field) .off = offsetof(struct warm_opts, field)

static const struct opt opts[] = {
	WALK_OPT_KEYS(struct warm_opts),
	{ 0, "layout", "L", "only what a rank of this layout holds: FILE, fsdp8, tp4:llama",
	  OPT_TEXT, OPT_LAYOUT, AT(layout) },
	{ 0, "rank", "R", "this rank; with --layout", OPT_TEXT, AT(rank) },
	{ 'j', "jobs", "N", "tensors that are read at a time; default 8", OPT_UINT, AT(jobs),
	  .max = MAX_JOBS },
	PICK_OPT_VERSION,
	PICK_OPTS(struct warm_opts),
	PICK_OPT_JSON(struct warm_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

struct warming {
	const struct warm_opts *o;
	struct pick p;
	struct walk_keys keys;
	size_t *tie;            /* walk_ties() */
	struct dcp_buf objects; /* int64_t: their rows */
	const struct dcp_layout *layout;
	uint32_t rank;
	struct progress progress;
	_Atomic uint64_t done; /* bytes */
	pthread_mutex_t lock;  /* the rest */
	size_t next;           /* of the tensors, then of the objects */
	uint64_t failed;
	char first[600]; /* why the first of them failed */
};

static void note_failure(struct warming *w, const char *key, int rc, const struct dcp_err *err)
{
	pthread_mutex_lock(&w->lock);
	if (w->failed++ == 0)
		snprintf(w->first, sizeof(w->first), "%s: %s", key,
			 err->msg[0] ? err->msg : dcp_err_noted(rc));
	pthread_mutex_unlock(&w->lock);
}

static int read_view(struct warming *w, const struct dcp_view *view, char *buf, bool leads,
		     const char *key)
{
	uint64_t size = dcp_view_size(view), at = 0;
	int rc = 0;

	while (at < size && rc == 0) {
		size_t n = (size_t)DCP_MIN(size - at, (uint64_t)CHUNK);

		rc = dcp_view_read(view, at, buf, n);
		at += n;
		w->done += rc == 0 ? n : 0;
		if (leads)
			w->progress.report.report(w->progress.report.ctx,
						  DCP_MIN((uint64_t)w->done, w->keys.nbytes),
						  w->keys.nbytes, key);
	}
	return rc;
}

static int warm_tensor(struct warming *w, const struct walk_key *k, char *buf, bool leads,
		       struct dcp_err *err)
{
	struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 26);
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_cut cut;
	int rc = 1;

	if (k->error)
		return dcp_fail(err, -EBADMSG, "%s", k->error);
	if (!w->layout && w->tie[k - WALK_KEYS(&w->keys)])
		return 0; /* another tensor has the same bytes */
	if (w->layout)
		rc = dcp_layout_cut(w->layout, w->rank, k->key, k->ndim, k->shape, &arena, &cut,
				    err);
	if (rc > 0)
		rc = dcp_view_open(w->p.ck.v, k->id, DCP_AS_RAW, w->layout ? &cut : NULL, &view,
				   err);
	if (rc == 0 && view)
		rc = read_view(w, view, buf, leads, k->key);
	dcp_arena_finish(&arena);
	return rc;
}

static int warm_object(struct warming *w, int64_t id, char *buf, struct dcp_err *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	int rc = dcp_view_open_object(w->p.ck.v, id, &view, err);

	if (rc == 0)
		rc = read_view(w, view, buf, false, NULL);
	return rc == -ENOTSUP ? 0 : rc;
}

struct job {
	struct warming *w;
	bool leads; /* and shows progress */
};

static void *warm_next(void *ctx)
{
	const struct job *job = ctx;
	struct warming *w = job->w;
	bool leads = job->leads;
	size_t nkeys = WALK_NKEYS(&w->keys), n = nkeys + DCP_NITEMS(w->objects, int64_t);
	dcp_auto_free char *buf = malloc(CHUNK);

	for (;;) {
		struct dcp_err err = { 0 };
		const struct walk_key *k;
		size_t i;
		int rc;

		pthread_mutex_lock(&w->lock);
		i = w->next++;
		pthread_mutex_unlock(&w->lock);
		if (i >= n)
			return NULL;
		k = i < nkeys ? &WALK_KEYS(&w->keys)[i] : NULL;
		rc = !buf ? -ENOMEM
		     : k  ? warm_tensor(w, k, buf, leads, &err)
			 : warm_object(w, DCP_ITEMS(w->objects, int64_t)[i - nkeys], buf, &err);
		if (rc < 0)
			note_failure(w, k ? k->key : "an object", rc, &err);
	}
}

static void warm_all(struct warming *w)
{
	struct job jobs[MAX_JOBS];

	for (unsigned i = 0; i < MAX_JOBS; i++)
		jobs[i] = (struct job){ w, i == 0 };
	progress_init(&w->progress, true);
	dcp_team_run(w->o->jobs ? (unsigned)w->o->jobs : JOBS, warm_next, jobs, sizeof(*jobs));
	progress_finish(&w->progress);
}

static int add_object(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct warming *w = ctx;

	return kind == DCP_ROW_OBJECT ? dcp_buf_add(&w->objects, &row->id, sizeof(row->id)) : 0;
}

static enum cmd_exit choose_keys(struct warming *w, struct dcp_layouts **layouts)
{
	const struct warm_opts *o = w->o;
	enum cmd_exit code;
	uint64_t rank = 0;

	if (!o->layout != !o->rank)
		return cmd_fail(CMD_USAGE, "warm: --layout and --rank go together");
	code = pick_layout(&w->p, o->layout, layouts, &w->layout);
	if (code == CMD_OK && w->layout &&
	    (!opt_number(o->rank, 10, &rank) || rank >= dcp_layout_ranks(w->layout)))
		return cmd_fail(CMD_USAGE, "there is no rank %s of %s, only 0 to %u", o->rank,
				dcp_layout_name(w->layout), dcp_layout_ranks(w->layout) - 1);
	w->rank = (uint32_t)rank;
	if (code == CMD_OK)
		code = walk_keys(&w->p, &o->keys, &w->keys);
	if (code == CMD_OK) {
		w->tie = walk_ties(&w->keys);
		code = w->tie ? CMD_OK : cmd_fail(CMD_ENV, "warm: out of memory");
	}
	if (code == CMD_OK && !w->layout && !o->keys.n &&
	    dcp_all_rows(dcp_version_index(w->p.ck.v), add_object, w) < 0)
		code = cmd_fail(CMD_ENV, "warm: out of memory");
	return code;
}

static enum cmd_exit print_warmed(const struct warming *w, double seconds, bool remote,
				  struct out *o)
{
	const struct dcp_http_counts http = dcp_http_counted();
	const struct dcp_disk_counts disk = dcp_disk_counted();
	char size[OUT_SIZE], wire[OUT_SIZE], n[32], requests[32];
	uint64_t tensors = WALK_NKEYS(&w->keys);

	if (o->form == OUT_JSON) {
		dcp_jsonw_object(&o->json);
		dcp_jsonw_put_str(&o->json, "version", w->p.ck.name);
		dcp_jsonw_put_u64(&o->json, "tensors", tensors);
		dcp_jsonw_put_u64(&o->json, "bytes", w->done);
		dcp_jsonw_put_bool(&o->json, "remote", remote);
		dcp_jsonw_put_u64(&o->json, "requests", http.requests);
		dcp_jsonw_put_u64(&o->json, "retries", http.retries);
		dcp_jsonw_put_u64(&o->json, "wire", http.bytes);
		dcp_jsonw_put_u64(&o->json, "kept", disk.written);
		dcp_jsonw_put_u64(&o->json, "unkept", disk.refused);
		dcp_jsonw_put_u64(&o->json, "failed", w->failed);
		dcp_jsonw_put_f64(&o->json, "seconds", seconds);
		dcp_jsonw_end(&o->json);
		return out_flush(o);
	}
	out_text(&o->buf, w->p.ck.name);
	dcp_buf_printf(&o->buf, ": %s tensor%s, %s in %.3f s", out_count(n, tensors),
		       dcp_s(tensors), out_size(size, w->done), seconds);
	if (remote)
		dcp_buf_printf(&o->buf, "; %s request%s, %s on the wire",
			       out_count(requests, http.requests), dcp_s(http.requests),
			       out_size(wire, http.bytes));
	dcp_buf_str(&o->buf, "\n");
	return out_flush(o);
}

/* Warn if bytes that were read could not be kept. */
static enum cmd_exit check_kept(const struct warming *w, bool remote)
{
	const struct dcp_disk_counts disk = dcp_disk_counted();
	char size[OUT_SIZE];

	if (w->failed)
		return cmd_fail(CMD_BAD, "warm: %s%s", w->first,
				w->failed > 1 ? ", and others" : "");
	if (!remote || !disk.refused)
		return CMD_OK;
	return cmd_fail(
		CMD_ENV,
		"warm: %s could not be kept: there is no strong tag (ETag), or no room: "
		"--cache-limit, \"dcpfs cache prune\", or 5 %% of the file system free",
		out_size(size, disk.refused));
}

static enum cmd_exit run_warm(const void *opts_in, const struct opt_args *args)
{
	struct warming w = { .o = opts_in, .lock = PTHREAD_MUTEX_INITIALIZER };
	dcp_auto_buf struct dcp_buf about = DCP_BUF_INIT;
	struct dcp_layouts *layouts = NULL;
	int64_t start_ns = dcp_now_ns(CLOCK_MONOTONIC);
	enum cmd_exit code, printed;
	bool remote = false;
	struct out o;

	code = walk_open(&w.p, args, &w.o->pick, "warm");
	out_init(&o, w.o->form);
	if (code == CMD_OK)
		remote = dcp_remote_about(dcp_version_place(w.p.ck.v), &about);
	if (code == CMD_OK && remote && (w.o->pick.no_cache || !w.p.cache))
		code = cmd_fail(CMD_USAGE, "warm: %s is on a server, and nothing is kept: %s",
				w.p.ck.source,
				w.o->pick.no_cache
					? "leave out --no-cache"
					: "there is no cache directory (DCPFS_CACHE)");
	if (code == CMD_OK)
		code = choose_keys(&w, &layouts);
	if (code == CMD_OK) {
		warm_all(&w);
		printed = print_warmed(
			&w, (double)(dcp_now_ns(CLOCK_MONOTONIC) - start_ns) / 1e9, remote, &o);
		code = check_kept(&w, remote);
		code = code == CMD_OK ? printed : code;
	}
	dcp_layouts_destroy(layouts);
	dcp_buf_finish(&w.objects);
	free(w.tie);
	walk_keys_finish(&w.keys);
	out_finish(&o);
	pick_finish(&w.p);
	return code;
}

const struct cmd cmd_warm = {
	.name = "warm",
	.what = "read a version ahead of its use, into a cache",
	.about = "What lies on a server comes to the cache directory, where later readers find "
		 "it without a request; what lies in files comes to the page cache. With "
		 "--layout and --rank only what that rank holds.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct warm_opts),
	.run = run_warm,
	.examples = { "dcpfs warm s3://bucket/run1", "dcpfs warm /data/run1 2000 --keys model.",
		      "dcpfs warm s3://bucket/run1 latest --layout fsdp8 --rank 3" },
};
