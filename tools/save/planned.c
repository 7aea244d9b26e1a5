/* SPDX-License-Identifier: Apache-2.0 */
/* The sink of a plan: creates files with their final size, writes the bytes that the format
 * generates, and records where data goes. */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "tools/save/save_int.h"

enum { FLUSH = 256 << 10 };

struct planning {
	struct save *s;
	struct dcp_buf own; /* bytes at [own_off, at) of the file */
	uint64_t own_off, at;
	struct dcp_err *err;
};

static void mix_hash(struct planning *p, char what, const void *q, size_t n)
{
	p->s->hash = dcp_hash64_more(dcp_hash64_more(p->s->hash, &what, 1), q, n);
}

static const char *file_name(const struct planning *p)
{
	size_t n = save_nfiles(p->s);

	return n ? save_files(p->s)[n - 1].name : p->s->name;
}

static int flush_bytes(struct planning *p)
{
	int rc = 0;

	if (p->own.n)
		rc = p->s->place->own(p->s, p->own_off, p->own.p, p->own.n);
	dcp_buf_reset(&p->own);
	return rc < 0 ? save_fail(p->s, rc, file_name(p), p->err) : 0;
}

/* Called when the file is complete. */
static int end_file(struct planning *p)
{
	struct save_file *f = save_files(p->s);
	size_t n = save_nfiles(p->s);
	int rc = flush_bytes(p);

	if (rc < 0 || n == 0)
		return rc;
	f[n - 1].size = p->at;
	p->s->bytes += p->at;
	rc = p->s->place->end_file(p->s);
	return rc < 0 ? save_fail(p->s, rc, file_name(p), p->err) : 0;
}

/* Formats take file names from keys, so a name that leads out of the directory is refused. */
static bool is_below(const char *name)
{
	if (strlen(name) >= PATH_MAX)
		return false;
	for (const char *s = name;; s++) {
		size_t n = strcspn(s, "/");

		if (n == 0 || (n <= 2 && strncmp(s, "..", n) == 0))
			return false;
		s += n;
		if (!*s)
			return true;
	}
}

static int on_file(void *ctx, const char *name, bool last)
{
	struct planning *p = ctx;
	struct save *s = p->s;
	struct save_file f = { .last = last };
	int rc = end_file(p);

	if (rc == 0 && !is_below(name))
		rc = dcp_fail(p->err, -EINVAL, "%s cannot be a file's name", name);
	if (rc < 0)
		return rc;
	f.name = dcp_arena_strdup(&s->arena, name);
	dcp_buf_add(&s->files, &f, sizeof(f));
	if (!f.name || dcp_buf_error(&s->files))
		return -ENOMEM;
	mix_hash(p, 'f', name, strlen(name));
	p->at = 0;
	rc = s->place->begin_file(s);
	return rc < 0 ? save_fail(s, rc, name, p->err) : 0;
}

static int on_bytes(void *ctx, const void *q, size_t n)
{
	struct planning *p = ctx;

	if (p->own.n == 0)
		p->own_off = p->at;
	dcp_buf_add(&p->own, q, n);
	p->at += n;
	mix_hash(p, 'b', q, n);
	if (dcp_buf_error(&p->own))
		return -ENOMEM;
	return p->own.n >= FLUSH ? flush_bytes(p) : 0;
}

static int on_data(void *ctx, const struct dcp_write_run *of)
{
	struct planning *p = ctx;
	struct save *s = p->s;
	const struct dcp_write_set *set = s->set;
	struct save_run run = { .off = p->at,
				.n = of->length,
				.at = s->data,
				.from = of->off,
				.raw = of->n,
				.tensor = of->tensor,
				.part = of->part,
				.piece = s->npieces,
				.text = of->text,
				.file = (uint32_t)save_nfiles(s) - 1 };
	uint64_t what[5] = { of->tensor, of->part, of->off, of->n, of->length };
	int rc = flush_bytes(p);

	if (of->tensor < set->ntensors)
		run.rank = set->tensors[of->tensor].parts[of->part].rank;
	dcp_buf_add(&s->runs, &run, sizeof(run));
	mix_hash(p, 'd', what, sizeof(what));
	p->at += of->length;
	s->npieces += dcp_div_up(of->length, SAVE_PIECE);
	if (dcp_ckd_add(&s->data, s->data, of->length))
		return -EFBIG;
	return rc < 0 ? rc : dcp_buf_error(&s->runs);
}

static int on_crc32(void *ctx, uint32_t crc, size_t run)
{
	struct planning *p = ctx;
	struct save_patch patch = {
		.off = p->at, .run = run, .before = crc, .file = (uint32_t)save_nfiles(p->s) - 1
	};

	if (dcp_buf_add(&p->s->patches, &patch, sizeof(patch)) < 0)
		return -ENOMEM;
	return on_bytes(ctx, "\0\0\0", 4);
}

static int run_plan(struct save *s, const struct dcp_write_format *f,
		    const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		    struct dcp_err *err)
{
	struct planning p = { .s = s, .err = err };
	const struct dcp_write_sink sink = { on_file, on_bytes, on_data, on_crc32, &p };
	const struct save_patch *patch;
	int rc;

	s->set = set;
	s->hash =
		dcp_hash64_more(s->opts.identity, &s->opts.withheld, sizeof(s->opts.withheld));
	s->bytes = s->data = 0;
	s->npieces = 0;
	dcp_buf_reset(&s->files);
	dcp_buf_reset(&s->runs);
	dcp_buf_reset(&s->patches);
	rc = dcp_write_plan(f, set, opts, &sink, err);
	if (rc == 0)
		rc = dcp_err_say(err, end_file(&p));
	dcp_close_fd(&s->planning_fd);
	dcp_buf_finish(&p.own);
	patch = DCP_ITEMS(s->patches, struct save_patch);
	for (size_t i = 0; rc == 0 && i < DCP_NITEMS(s->patches, struct save_patch); i++)
		save_runs(s)[patch[i].run].crc32 = true;
	return rc;
}

int save_plan(struct save *s, const struct dcp_write_format *f, const struct dcp_write_set *set,
	      const struct dcp_write_opts *opts, struct dcp_err *err)
{
	int rc = run_plan(s, f, set, opts, err);

	if (rc == 0)
		rc = s->place->planned(s, err);
	if (rc != -ESTALE)
		return rc;
	/* The leftovers are of another save: start over. Without a plan in the journal nothing was
	 * written. */
	if (s->opts.removed && save_journal_has_plan(s))
		s->opts.removed(s->opts.out);
	s->opts.resume = false;
	rc = save_clear(s, err);
	if (rc == 0)
		rc = run_plan(s, f, set, opts, err);
	return rc == 0 ? save_journal_begin(s, err) : rc;
}
