/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that each take the next piece, read it from the source and write it to its offset, so
 * that reading and writing overlap; or let the kernel copy it. At the end the files that this
 * process wrote are synced to the disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/format/format.h"
#include "tools/save/save_int.h"

enum {
	FLUSH = 1
		<< 20, /* shorter pieces are left to the kernel: each would be a write of its own */
};

struct team {
	struct save *s;
	const struct save_source *source;
	size_t next; /* number of the next piece; atomic, as are the byte counts of the save */
	uint64_t done;
	int failed; /* atomic: the first failure */
	pthread_mutex_t lock;
	struct dcp_err *err; /* lock */
};

struct job {
	struct team *team;
	unsigned number;
	struct save_pen pen;
	char *page; /* memory of a page and a piece */
	char *buf;  /* in @page, with the alignment that the piece has in the file */
};

struct piece {
	const struct save_run *run;
	size_t number;
	uint64_t off, n; /* in the run */
};

/* ---- whose is it? ---- */

static const struct save_run *find_run(const struct save *s, size_t piece)
{
	const struct save_run *r = save_runs(s);
	size_t i;

	/* The last run that begins at or before the piece, because runs may be empty. */
	DCP_BISECT(i, 0, save_nruns(s), r[i].piece <= piece);
	return &r[i - 1];
}

static struct piece get_piece(const struct save *s, size_t number)
{
	struct piece p = { .run = find_run(s, number), .number = number };

	p.off = (number - p.run->piece) * (uint64_t)SAVE_PIECE;
	p.n = DCP_MIN(p.run->n - p.off, (uint64_t)SAVE_PIECE);
	return p;
}

static bool is_mine(const struct team *t, const struct piece *p)
{
	const struct save *s = t->s;
	__uint128_t at = p->run->at + p->off;

	if (t->source->has && !t->source->has(t->source->ctx, p->run->tensor, p->run->part))
		return false;
	if (s->opts.ranks <= 1)
		return true;
	if (s->owner)
		return s->owner[p->run->file] == s->opts.rank;
	if (s->opts.by_owner)
		return p->run->rank == s->opts.rank;
	return (uint32_t)(at * s->opts.ranks / s->data) == s->opts.rank;
}

/* ---- one piece ---- */

/* Is a piece that the kernel copied, and that has no hash, equal to the source? */
static bool is_copy(struct job *j, const struct piece *p)
{
	const struct save_source *from = j->team->source;
	const struct save_run *r = p->run;
	char *a = j->buf, *b = j->buf + SAVE_PIECE / 2;
	struct dcp_err err;

	for (uint64_t at = p->off, n; at < p->off + p->n; at += n) {
		n = DCP_MIN(p->off + p->n - at, (uint64_t)SAVE_PIECE / 2);
		if (from->read(from->ctx, j->number, r->tensor, r->part, r->from + at, a, n,
			       &err) < 0 ||
		    save_pread(j->pen.fd, b, n, r->off + at) < 0 || memcmp(a, b, n) != 0)
			return false;
	}
	return true;
}

/* Is the piece there already, from an interrupted save? */
static bool is_kept(struct job *j, const struct piece *p)
{
	struct save *s = j->team->s;
	const struct save_sum *noted = s->resumed ? &s->noted[p->number] : NULL;

	if (!noted || !noted->done || save_pick_file(s, &j->pen, p->run->file) < 0)
		return false;
	if (noted->done != 1 ? !is_copy(j, p)
			     : save_pread(j->pen.fd, j->buf, p->n, p->run->off + p->off) < 0 ||
				       dcp_hash64(j->buf, p->n) != noted->hash)
		return false;
	s->sums[p->number] = *noted;
	__atomic_fetch_add(&s->kept, p->n, __ATOMIC_RELAXED);
	return true;
}

static int fail_changed(struct dcp_err *err)
{
	return dcp_fail(err, -ESTALE, "a file of the checkpoint was changed meanwhile");
}

/* Make a whole run of text. It is made in place, from bytes that are at the end of the buffer. */
static int read_text(struct job *j, const struct save_run *r, struct dcp_err *err)
{
	const struct save_source *from = j->team->source;
	unsigned char *to = (unsigned char *)j->buf, *end = to + r->n, *at = end - r->raw;
	int rc = from->read(from->ctx, j->number, r->tensor, r->part, r->from, at, r->raw, err);

	_Static_assert(2 * DCP_WRITE_TEXT <= SAVE_PIECE, "a run of text is one piece");
	for (; rc == 0 && at < end; at++) {
		unsigned char byte = *at;

		if (byte < 0x80) {
			*to++ = byte;
			continue;
		}
		if (to == at) /* more bytes of 0x80 or more than were counted */
			return fail_changed(err);
		*to++ = 0xc0 | byte >> 6;
		*to++ = 0x80 | (byte & 0x3f);
	}
	return rc == 0 && to != end ? fail_changed(err) : rc;
}

static int read_piece(struct job *j, const struct piece *p, struct dcp_err *err)
{
	const struct save_source *from = j->team->source;
	const struct save_run *r = p->run;

	return r->text ? read_text(j, r, err)
		       : from->read(from->ctx, j->number, r->tensor, r->part, r->from + p->off,
				    j->buf, p->n, err);
}

/* Let the kernel copy bytes from file to file, if the format needs no checksum of them. 1: done. */
static int let_copy(struct job *j, const struct piece *p, struct dcp_err *err)
{
	const struct save_source *from = j->team->source;
	struct save *s = j->team->s;
	const struct save_run *r = p->run;
	int rc;

	if (!from->copy || r->crc32 || r->text || s->opts.direct || s->uploads)
		return 0;
	rc = save_pick_file(s, &j->pen, r->file);
	if (rc == 0)
		rc = from->copy(from->ctx, j->number, r->tensor, r->part, r->from + p->off,
				p->n, j->pen.fd, r->off + p->off, err);
	if (rc > 0)
		__atomic_fetch_add(&s->copied, p->n, __ATOMIC_RELAXED);
	return rc;
}

static int put_piece(struct job *j, const struct piece *p, struct save_sum *sum,
		     struct dcp_err *err)
{
	int rc = let_copy(j, p, err);

	sum->done = rc > 0 ? 2 : 1;
	if (rc != 0)
		return rc < 0 ? dcp_err_say(err, rc) : 0;
	rc = read_piece(j, p, err);
	if (rc < 0)
		return dcp_err_say(err, rc);
	rc = j->team->s->place->write(j->team->s, &j->pen, p->run->file, p->run->off + p->off,
				      j->buf, p->n);
	if (j->team->s->noted)
		sum->hash = dcp_hash64(j->buf, p->n);
	if (p->run->crc32)
		sum->crc32 = dcp_crc32(0, j->buf, p->n);
	return rc < 0 ? save_fail(j->team->s, rc, save_files(j->team->s)[p->run->file].name,
				  err)
		      : 0;
}

static void note_sum(const struct save *s, size_t piece, const struct save_sum *sum)
{
	s->sums[piece] = *sum;
	if (!s->noted)
		return;
	s->noted[piece].hash = sum->hash;
	s->noted[piece].crc32 = sum->crc32;
	__atomic_store_n(&s->noted[piece].done, sum->done, __ATOMIC_RELEASE);
}

static int bring_piece(struct job *j, const struct piece *p, struct dcp_err *err)
{
	struct save *s = j->team->s;
	uint64_t at = p->run->off + p->off;
	struct save_sum sum = { 0 };
	int rc;

	j->buf = j->page + at % SAVE_PAGE;
	if (is_kept(j, p))
		return 0;
	rc = put_piece(j, p, &sum, err);
	if (rc < 0)
		return rc;
	/* Start writing back now, so that not all of it is left for the end. */
	if (p->n >= FLUSH && j->pen.fd >= 0 && j->pen.direct < 0)
		sync_file_range(j->pen.fd, (off_t)at, (off_t)p->n, SYNC_FILE_RANGE_WRITE);
	note_sum(s, p->number, &sum);
	if (s->place->wrote)
		rc = s->place->wrote(s, p->run);
	if (rc < 0)
		return save_fail(s, rc, save_files(s)[p->run->file].name, err);
	__atomic_fetch_add(&s->written, p->n, __ATOMIC_RELAXED);
	return 0;
}

static void fail_team(struct team *t, int rc, const struct dcp_err *err)
{
	pthread_mutex_lock(&t->lock);
	if (!t->failed && t->err)
		*t->err = *err;
	if (!t->failed)
		__atomic_store_n(&t->failed, rc, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&t->lock);
}

static void report_piece(const struct job *j, const struct piece *p)
{
	const struct dcp_progress *progress = j->team->s->opts.progress;
	uint64_t done = __atomic_add_fetch(&j->team->done, p->n, __ATOMIC_RELAXED);

	char what[NAME_MAX + 20];

	snprintf(what, sizeof(what), "writing %s", save_files(j->team->s)[p->run->file].name);
	if (progress && j->number == 0)
		progress->report(progress->ctx, done, j->team->s->data, what);
}

static void *save_pieces(void *ctx)
{
	struct job *j = ctx;
	struct team *t = j->team;
	struct dcp_err err = { 0 };
	size_t number;

	while (!__atomic_load_n(&t->failed, __ATOMIC_RELAXED) &&
	       (number = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED)) < t->s->npieces) {
		struct piece p = get_piece(t->s, number);
		int rc = is_mine(t, &p) ? bring_piece(j, &p, &err) : 0;

		if (rc < 0)
			fail_team(t, rc, &err);
		else
			report_piece(j, &p);
	}
	save_close_pen(&j->pen);
	return NULL;
}

/* ---- all of them ---- */

static unsigned count_jobs(const struct save *s)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t n = s->opts.jobs ? s->opts.jobs : (uint64_t)DCP_MIN(DCP_MAX(cpus, 1), 8);

	n = DCP_MIN(n, (uint64_t)SAVE_MAX_JOBS);
	return (unsigned)DCP_MAX(DCP_MIN(n, (uint64_t)s->npieces), 1);
}

static int run_jobs(struct team *t, unsigned n)
{
	struct job jobs[SAVE_MAX_JOBS] = { 0 };
	char *bufs = aligned_alloc(SAVE_PAGE, n * (SAVE_PIECE + SAVE_PAGE));

	if (!bufs)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++)
		jobs[i] = (struct job){ .team = t,
					.number = i,
					.pen = SAVE_PEN,
					.page = bufs + i * (SAVE_PIECE + SAVE_PAGE) };
	dcp_team_run(n, save_pieces, jobs, sizeof(*jobs));
	free(bufs);
	return 0;
}

int save_data(struct save *s, const struct save_source *source, struct dcp_err *err)
{
	struct team t = { .s = s, .source = source, .err = err };
	int rc;

	pthread_mutex_init(&t.lock, NULL);
	rc = dcp_err_say(err, run_jobs(&t, count_jobs(s)));
	pthread_mutex_destroy(&t.lock);
	if (rc == 0)
		rc = t.failed;
	return rc < 0 ? rc : s->place->sync(s, err);
}

uint32_t save_crc32_of(const struct save *s, const struct save_patch *patch)
{
	const struct save_run *run = &save_runs(s)[patch->run];
	uint32_t crc = patch->before;

	for (uint64_t off = 0, i = run->piece; off < run->n; off += SAVE_PIECE, i++) {
		uint64_t n = DCP_MIN(run->n - off, (uint64_t)SAVE_PIECE);

		crc = dcp_crc32_join(crc, s->sums[i].crc32, n);
	}
	return crc;
}
