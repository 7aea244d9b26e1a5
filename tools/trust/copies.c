/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/copies.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"

enum { CHUNK = 256 << 10 };

/* The version as it is read without some files: from what else has their elements. */
struct without {
	struct pick p;
	bool open;
	uint32_t *file;
	size_t n;
};

struct comparing {
	struct copies *w;
	const struct walk_key *key;
	struct without other;
	char *buf[2];
};

static void close_without(struct without *o)
{
	if (o->open)
		pick_finish(&o->p);
	o->open = false;
	free(o->file);
	o->file = NULL;
}

static enum cmd_exit open_without(struct comparing *c, const uint32_t *file, size_t n)
{
	struct without *o = &c->other;
	enum cmd_exit code = CMD_OK;

	if (o->open && o->n == n && memcmp(o->file, file, n * sizeof(*file)) == 0)
		return CMD_OK;
	close_without(o);
	o->file = calloc(n, sizeof(*file));
	if (!o->file)
		return cmd_fail(CMD_ENV, "verify: %s", strerror(ENOMEM));
	memcpy(o->file, file, n * sizeof(*file));
	o->n = n;
	o->open = true;
	code = walk_pick(&o->p, c->w->p->ck.source, c->w->p->ck.name, c->w->opts, "verify");
	for (size_t i = 0; code == CMD_OK && i < n; i++)
		dcp_files_avoid(dcp_version_files(o->p.ck.v), file[i]);
	if (code != CMD_OK)
		close_without(o);
	return code;
}

/* The elements of a piece, as an array of their own. */
static int cut_of(const struct dcp_piece *p, uint32_t ndim, struct dcp_arena *arena,
		  struct dcp_cut *out)
{
	uint64_t volume = 1;
	int rc = dcp_cut_box(out, ndim, p->lo, p->len, arena);

	for (uint32_t d = 0; d < ndim; d++)
		volume *= p->len[d]; /* a part of a tensor, whose volume fits */
	if (rc == 0 && p->run_n != volume) {
		out->flat = true;
		out->flat_lo = p->run_lo;
		out->flat_n = p->run_n;
	}
	return rc;
}

static void compare_views(struct comparing *c, const struct dcp_view *a,
			  const struct dcp_view *b, struct copies_bad *bad)
{
	uint64_t size = dcp_view_size(a);
	int rc = size == dcp_view_size(b) ? 0 : -EBADMSG;

	bad->bytes = size;
	bad->first = UINT64_MAX;
	for (uint64_t at = 0; rc == 0 && at < size; at += CHUNK) {
		size_t n = (size_t)DCP_MIN((uint64_t)CHUNK, size - at);

		if (dcp_view_read(a, at, c->buf[0], n) < 0)
			return; /* which reading all tensors says */
		rc = dcp_view_read(b, at, c->buf[1], n);
		if (rc < 0 || memcmp(c->buf[0], c->buf[1], n) == 0)
			continue;
		for (size_t i = 0; i < n; i++)
			if (c->buf[0][i] != c->buf[1][i]) {
				bad->first = DCP_MIN(bad->first, at + i);
				bad->differ++;
			}
	}
	bad->why = rc < 0 ? strerror(-rc) : NULL;
	if (rc < 0 || bad->differ)
		c->w->bad(c->w->ctx, bad);
	else
		c->w->equal++;
}

/* One piece with all its copies, each read without the files that come before it. */
static int compare_piece(struct comparing *c, const struct dcp_tensor *t,
			 const struct dcp_piece *p)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 26);
	dcp_auto_view struct dcp_view *first = NULL;
	uint32_t *file = dcp_arena_calloc(&arena, (size_t)t->ncopies + 1, sizeof(*file));
	struct dcp_err err = { 0 };
	struct dcp_cut cut;
	size_t n = 1;
	int rc = file ? cut_of(p, t->ndim, &arena, &cut) : -ENOMEM;

	if (rc == 0)
		rc = dcp_view_open(c->w->p->ck.v, c->key->id, DCP_AS_RAW, &cut, &first, &err);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0; /* which reading all tensors says */
	file[0] = p->file;
	for (size_t k = 0; k < t->ncopies; k++) {
		const struct dcp_piece *copy = &t->copies[k];
		dcp_auto_view struct dcp_view *view = NULL;
		struct copies_bad bad = { .key = c->key,
					  .file = p->file,
					  .other = copy->file,
					  .off = p->enc == DCP_ENC_PLAIN ? p->off : 0,
					  .n = p->enc == DCP_ENC_PLAIN ? p->nbytes : 0 };

		if (dcp_piece_compare(copy, p, t->ndim) != 0)
			continue;
		if (open_without(c, file, n) != CMD_OK)
			return -EIO; /* said; the rest is not compared */
		file[n++] = copy->file;
		rc = dcp_view_open(c->other.p.ck.v, c->key->id, DCP_AS_RAW, &cut, &view, &err);
		if (rc == -ENOMEM)
			return rc;
		bad.why = err.msg;
		if (rc < 0) {
			c->w->bad(c->w->ctx, &bad);
		} else {
			bad.with = c->other.p.ck.v;
			compare_views(c, first, view, &bad);
		}
	}
	return 0;
}

int copies_check(struct copies *w)
{
	struct dcp_index *ix = dcp_version_index(w->p->ck.v);
	struct comparing c = { .w = w, .buf = { malloc(CHUNK), malloc(CHUNK) } };
	int rc = c.buf[0] && c.buf[1] ? 0 : -ENOMEM;

	for (size_t i = 0; rc == 0 && i < WALK_NKEYS(w->keys); i++) {
		dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
		struct dcp_tensor t;

		c.key = &WALK_KEYS(w->keys)[i];
		if (c.key->alias_of)
			continue;
		rc = dcp_index_tensor(ix, c.key->id, &arena, &t, NULL);
		for (size_t k = 0; rc == 0 && t.ncopies && k < t.npieces; k++)
			rc = compare_piece(&c, &t, &t.pieces[k]);
	}
	close_without(&c.other);
	free(c.buf[0]);
	free(c.buf[1]);
	return rc;
}
