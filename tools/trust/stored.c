/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/trust.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "core/store/io/files.h"

enum {
	CHUNK = 256 << 10,
	END = 22,
	MOST_FALSE = 4096, /* false end records in a row, as an attacker may plant */
};

/* Bytes of a file that are damaged. */
struct damage {
	uint32_t file;
	uint64_t off, n;
	const char *why;             /* NULL: no memory */
	const struct walk_key *told; /* the last key reported for these bytes; NULL: none */
};

struct team {
	struct stored *w;
	struct dcp_buf damage;  /* struct damage */
	struct dcp_arena arena; /* of their texts */
	struct dcp_files *files;
	size_t nfiles;
	uint32_t next;
	uint64_t done;
	int64_t start_ns;
	int rc;
	pthread_mutex_t lock;
};

struct job {
	struct team *t;
	uint32_t file;
	uint8_t *buf;
};

static int read_some(struct job *j, const struct dcp_source *src, uint64_t off, size_t n)
{
	struct team *t = j->t;
	int rc = dcp_source_read(src, off, j->buf, n);
	uint64_t done = __atomic_add_fetch(&t->done, n, __ATOMIC_RELAXED);

	walk_wait_for_rate(t->start_ns, t->w->rate, done);
	return rc;
}

static void say_bad(struct job *j, uint64_t off, uint64_t n, const char *why)
{
	struct team *t = j->t;
	struct damage d = { .file = j->file, .off = off, .n = n };

	pthread_mutex_lock(&t->lock);
	d.why = dcp_arena_strdup(&t->arena, why);
	dcp_buf_add(&t->damage, &d, sizeof(d));
	pthread_mutex_unlock(&t->lock);
}

static void check_member(struct job *j, const struct dcp_source *src, uint64_t base,
			 const struct dcp_zip_member *m)
{
	struct dcp_err err = { 0 };
	uint64_t off, at = 0;
	uint32_t crc = 0;
	char why[300];
	int rc = dcp_zip_data(src, m, &off, &err);

	if (rc < 0) {
		say_bad(j, base + m->header_off, m->packed, err.msg);
		return;
	}
	if (!m->stored || !m->crc32)
		return; /* compressed files are checked when they are decoded */
	while (at < m->size && rc == 0) {
		size_t n = (size_t)DCP_MIN((uint64_t)CHUNK, m->size - at);

		rc = read_some(j, src, off + at, n);
		if (rc == 0)
			crc = dcp_crc32(crc, j->buf, n);
		at += n;
	}
	if (rc < 0)
		say_bad(j, base + off, m->size, dcp_err_noted(rc));
	else if (crc != m->crc32) {
		snprintf(
			why, sizeof(why),
			"the CRC-32 of %.200s is %08x, and %08x is recorded: bytes are damaged",
			m->name, crc, m->crc32);
		say_bad(j, base + off, m->size, why);
	} else {
		__atomic_add_fetch(&j->t->w->checked, 1, __ATOMIC_RELAXED);
	}
}

/* If [off, end) of the file is an archive, check its members. */
static int check_archive(struct job *j, const struct dcp_source *file, uint64_t off,
			 uint64_t end, bool *is)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_source src = dcp_source_window(file, off, end - off);
	struct dcp_zip_member *m;
	size_t n;
	int rc = dcp_zip_list(&src, &arena, &m, &n, NULL);

	*is = rc == 0 && n; /* an archive without members has another beginning */
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	for (size_t i = 0; i < n; i++)
		check_member(j, &src, off, &m[i]);
	return 0;
}

/* Check archives in a row: the end record of each says where it begins, and the bytes there must
 * agree. */
static int check_row(struct job *j, const struct dcp_source *src)
{
	static const uint8_t mark[4] = { 'P', 'K', 5, 6 };
	uint64_t begin = 0, off = 0, known = 0;
	unsigned wrong = 0;
	uint8_t head[4];

	while (off + END <= src->size) {
		size_t n = (size_t)DCP_MIN((uint64_t)CHUNK, src->size - off);
		const uint8_t *at = j->buf;
		uint64_t ends[64];
		size_t found = 0;

		if (read_some(j, src, off, n) < 0)
			break;
		while (found < DCP_LEN(ends) &&
		       (at = memmem(at, n - (size_t)(at - j->buf), mark, sizeof(mark)))) {
			ends[found++] = off + (uint64_t)(at - j->buf);
			at += sizeof(mark);
		}
		/* The buffer of ends is full: search again after the last end. */
		off = found == DCP_LEN(ends) ? ends[found - 1] + sizeof(mark)
		      : n < CHUNK            ? src->size
					     : off + n - sizeof(mark) + 1;
		for (size_t i = 0; i < found; i++) {
			uint64_t end = ends[i] + END;
			bool is;
			int rc;

			if (end > src->size || dcp_source_read(src, ends[i] + 20, head, 2) < 0)
				continue;
			end += dcp_load_le16(head);
			if (end > src->size)
				continue;
			rc = check_archive(j, src, begin, end, &is);
			if (rc < 0)
				return rc;
			known += is;
			begin = is ? end : begin;
			wrong = is ? 0 : wrong + 1;
			if (wrong == MOST_FALSE) {
				say_bad(j, begin, src->size - begin,
					"thousands of ends of archives that end none: its "
					"checksums are not looked for");
				return 0;
			}
		}
	}
	/* The rest is no archive, or an archive whose end is damaged. */
	if (known && src->size - begin >= 4 && dcp_source_read(src, begin, head, 4) == 0 &&
	    memcmp(head, "PK\3\4", 4) == 0)
		say_bad(j, begin, src->size - begin,
			"an archive is damaged: its list of members cannot be read");
	return 0;
}

static int check_file(struct job *j)
{
	struct dcp_err err = { 0 };
	const struct dcp_file *file;
	struct dcp_source src;
	uint8_t head[4] = { 0 };
	bool is = false;
	int rc = dcp_files_hold(j->t->files, j->file, true, &file, &err);

	if (rc < 0) {
		say_bad(j, 0, 0, err.msg[0] ? err.msg : dcp_err_noted(rc));
		return rc == -ENOMEM ? rc : 0;
	}
	src = dcp_source_blob(&file->blob);
	src.size = DCP_MIN(src.size, file->size);
	if (src.size >= sizeof(head) && dcp_source_read(&src, 0, head, sizeof(head)) == 0 &&
	    memcmp(head, "PK\3\4", 4) == 0) {
		rc = check_archive(j, &src, 0, src.size, &is);
		if (rc == 0 && !is)
			rc = check_row(j, &src);
	}
	dcp_files_release(j->t->files, j->file);
	return rc;
}

static void *check_next(void *ctx)
{
	struct job *j = ctx;
	struct team *t = j->t;

	for (;;) {
		int rc;

		j->file = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
		if (j->file >= t->nfiles || __atomic_load_n(&t->rc, __ATOMIC_RELAXED) < 0)
			return NULL;
		rc = check_file(j);
		if (rc < 0)
			__atomic_store_n(&t->rc, rc, __ATOMIC_RELAXED);
	}
}

/* ---- which tensors lie in damaged bytes? ---- */

static int by_place(const void *a, const void *b)
{
	const struct damage *x = a, *y = b;

	return x->file != y->file ? DCP_CMP(x->file, y->file) : DCP_CMP(x->off, y->off);
}

/* Report damaged bytes of the piece @p of a tensor, and whether another file has the same bytes. */
static void tell_damage(struct team *t, const struct walk_key *k, const struct dcp_tensor *x,
			const struct dcp_piece *p, struct damage *d)
{
	const struct dcp_file_id *files =
		dcp_index_files(dcp_version_index(t->w->p->ck.v), &t->nfiles);
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;
	const char *other = NULL;

	for (size_t c = 0; c < x->ncopies && !other; c++)
		if (dcp_piece_compare(&x->copies[c], p, x->ndim) == 0)
			other = x->copies[c].file < t->nfiles ? files[x->copies[c].file].name
							      : "?";
	dcp_buf_str(&why, d->why ? d->why : "");
	dcp_buf_printf(&why, other ? "; %s has a copy" : "; no other file has a copy",
		       other ? other : "");
	dcp_buf_add(&why, "", 1);
	t->w->bad(t->w->ctx, &(struct stored_bad){ k->key, d->file, d->off, d->n,
						   why.p ? why.p : "", !d->told });
	d->told = k;
}

/* Each tensor is looked up once, whatever the number of damages. */
static void tell_tensor(struct team *t, const struct walk_key *k)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct damage *all = DCP_ITEMS(t->damage, struct damage);
	size_t n = DCP_NITEMS(t->damage, struct damage);
	struct dcp_tensor x;
	int rc = dcp_index_tensor(dcp_version_index(t->w->p->ck.v), k->id, &arena, &x, NULL);

	for (size_t i = 0; rc == 0 && i < x.npieces; i++) {
		const struct dcp_piece *p = &x.pieces[i];
		const struct damage from = { .file = p->file, .off = p->off };
		size_t at;

		DCP_BISECT(at, 0, n, by_place(&all[at], &from) < 0);
		at -= at && all[at - 1].file == p->file &&
		      all[at - 1].off + all[at - 1].n > p->off;
		for (; at < n && all[at].file == p->file && all[at].off < p->off + p->nbytes;
		     at++)
			if (all[at].n && all[at].told != k)
				tell_damage(t, k, &x, p, &all[at]);
	}
}

static void tell_all(struct team *t)
{
	struct damage *all = DCP_ITEMS(t->damage, struct damage);
	size_t n = DCP_NITEMS(t->damage, struct damage);

	DCP_SORT(all, n, by_place);
	for (size_t i = 0; n && i < WALK_NKEYS(t->w->keys); i++)
		tell_tensor(t, &WALK_KEYS(t->w->keys)[i]);
	for (size_t i = 0; i < n; i++)
		if (!all[i].told)
			t->w->bad(t->w->ctx,
				  &(struct stored_bad){ NULL, all[i].file, all[i].off, all[i].n,
							all[i].why ? all[i].why : "", true });
}

int stored_check(struct stored *w)
{
	struct team t = { .w = w,
			  .arena = DCP_ARENA_INIT((size_t)1 << 32),
			  .files = dcp_version_files(w->p->ck.v),
			  .start_ns = dcp_now_ns(CLOCK_MONOTONIC) };
	unsigned n = walk_count_jobs(w->jobs);
	struct job jobs[WALK_MAX_JOBS] = { 0 };

	dcp_index_files(dcp_version_index(w->p->ck.v), &t.nfiles);
	pthread_mutex_init(&t.lock, NULL);
	for (unsigned i = 0; i < n; i++) {
		jobs[i] = (struct job){ .t = &t, .buf = malloc(CHUNK) };
		t.rc = jobs[i].buf ? t.rc : -ENOMEM;
	}
	if (t.rc == 0)
		dcp_team_run(n, check_next, jobs, sizeof(*jobs));
	for (unsigned i = 0; i < n; i++)
		free(jobs[i].buf);
	pthread_mutex_destroy(&t.lock);
	tell_all(&t);
	if (t.rc == 0)
		t.rc = dcp_buf_error(&t.damage);
	dcp_buf_finish(&t.damage);
	dcp_arena_finish(&t.arena);
	return t.rc;
}
