/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the keys of all ranks with each other and with the stored keys. Ranks exchange hashes of
 * keys, and bitmaps. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/model/layout/layout.h"
#include "core/store/layouts/layouts.h"
#include "tools/load/load.h"

enum { TURN = 4096 }; /* bytes of the bitmap that each rank sends at a time */

/* ---- lists ---- */

int load_list(struct dcpload_plan *p, uint32_t list, const char *key, const char *fmt, ...)
{
	char why[600];
	struct load_listed *l;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (DCP_GROW(p->list[list].v, p->list[list].cap, p->list[list].n) < 0)
		return -ENOMEM;
	l = &p->list[list].v[p->list[list].n++];
	l->key = dcp_arena_strdup(&p->arena, key);
	l->why = dcp_arena_strdup(&p->arena, why);
	return l->key && l->why ? 0 : -ENOMEM;
}

int dcpload_plan_list(const struct dcpload_plan *p, uint32_t list, uint64_t i, const char **key,
		      const char **why)
{
	if (list >= DCP_LEN(p->list) || i >= p->list[list].n)
		return -ENOENT;
	*key = p->list[list].v[i].key;
	if (why)
		*why = p->list[list].v[i].why;
	return 0;
}

/* ---- all ranks ---- */

/* Hashes of the keys that a rank wants, sorted, without duplicates. */
struct keyset {
	uint64_t *hash;
	size_t n;
};

static int hash_keys(const struct dcpload_plan *p, struct keyset *out)
{
	uint64_t *hash = calloc(p->nwant + 1, sizeof(*hash));

	*out = (struct keyset){ hash, 0 };
	if (!hash)
		return -ENOMEM;
	for (size_t i = 0; i < p->nwant; i++)
		hash[i] = dcp_hash64(p->want[i].key, strlen(p->want[i].key));
	DCP_SORT(hash, p->nwant, dcp_by_u64);
	for (size_t i = 0; i < p->nwant; i++)
		if (out->n == 0 || hash[out->n - 1] != hash[i])
			hash[out->n++] = hash[i];
	return 0;
}

static const char *key_of(const struct dcpload_plan *p, uint64_t hash)
{
	for (size_t i = 0; i < p->nwant; i++)
		if (dcp_hash64(p->want[i].key, strlen(p->want[i].key)) == hash)
			return p->want[i].key;
	return NULL;
}

/* Keys that one rank wants and another does not. */
struct lacking {
	uint64_t n, hash; /* @hash: of the first of them */
};

static struct lacking find_lacking(const struct load_blobs *b, uint32_t wanted_by,
				   uint32_t not_by)
{
	const uint64_t *h = b->at[wanted_by];
	struct lacking l = { 0 };

	for (uint64_t i = 0; i < b->n[wanted_by] / sizeof(*h); i++) {
		if (DCP_FIND(&h[i], (const uint64_t *)b->at[not_by], b->n[not_by] / sizeof(*h),
			     dcp_by_u64))
			continue;
		l.hash = l.n++ ? l.hash : h[i];
	}
	return l;
}

static int fail_differing(struct dcpload_plan *p, uint32_t r, struct lacking more,
			  struct lacking less, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = p->ck->comm;
	const char *key = NULL, *first = "", *other = "";
	struct load_blobs b = { 0 };
	int rc;

	if (comm->rank == 0 && more.n)
		key = key_of(p, more.hash);
	if (comm->rank == r && less.n)
		key = key_of(p, less.hash);
	rc = load_gather(comm, key, key ? strlen(key) + 1 : 0, &b, err,
			 (int)p->ck->config.timeout_ms);
	if (rc < 0)
		return rc;
	if (b.n[0] && !((char *)b.at[0])[b.n[0] - 1])
		first = b.at[0];
	if (b.n[r] && !((char *)b.at[r])[b.n[r] - 1])
		other = b.at[r];
	rc = load_fail(
		err, -EINVAL,
		"ranks want different keys: rank 0 wants %llu that rank %u does not%s%.300s"
		"; rank %u wants %llu that rank 0 does not%s%.300s",
		(unsigned long long)more.n, r, *first ? ", as " : "", first, r,
		(unsigned long long)less.n, *other ? ", as " : "", other);
	load_blobs_free(&b);
	return rc;
}

/* The keys of a rank, as it reports them. */
struct key_sum {
	/* number of wanted keys, hash over them, number of tensors in the checkpoint */
	uint64_t n, hash, stored;
};

/* -EINVAL if ranks want different keys: only rank 0 and the first rank that differs send their
 * keys. All ranks get the same result. */
static int compare_keys(struct dcpload_plan *p, const struct keyset *mine,
			const struct load_blobs *sums, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = p->ck->comm;
	struct lacking more, less;
	struct load_blobs b;
	uint32_t r = 1;
	int rc;

	while (r < comm->ranks && memcmp(sums->at[r], sums->at[0], sizeof(struct key_sum)) == 0)
		r++;
	if (r >= comm->ranks)
		return 0;
	rc = load_gather(comm, mine->hash,
			 comm->rank == 0 || comm->rank == r ? mine->n * sizeof(*mine->hash) : 0,
			 &b, err, (int)p->ck->config.timeout_ms);
	if (rc < 0)
		return rc;
	more = find_lacking(&b, 0, r);
	less = find_lacking(&b, r, 0);
	load_blobs_free(&b);
	return fail_differing(p, r, more, less, err);
}

/* ---- what is stored ---- */

/* A bit for each stored tensor: is it wanted? */
struct stored {
	struct dcpload_plan *p;
	const struct keyset *mine;
	uint8_t *wanted;
	uint64_t n;
};

static int mark_wanted(struct stored *st, uint64_t i, const char *key)
{
	uint64_t hash = dcp_hash64(key, strlen(key));

	if (DCP_FIND(&hash, st->mine->hash, st->mine->n, dcp_by_u64))
		st->wanted[i / 8] |= (uint8_t)(1 << i % 8);
	return 0;
}

static int list_unwanted(struct stored *st, uint64_t i, const char *key)
{
	return st->wanted[i / 8] >> i % 8 & 1 ? 0
					      : load_list(st->p, DCPLOAD_UNEXPECTED, key,
							  "stored, and wanted by no rank");
}

static int visit_stored(struct stored *st,
			int (*fn)(struct stored *st, uint64_t i, const char *key))
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(st->p->ck->of.v), DCP_ROW_TENSOR, 0, true,
				&scan);

	for (uint64_t i = 0; rc == 0 && i < st->n && (rc = dcp_index_scan_next(scan, &row)) > 0;
	     i++)
		rc = fn(st, i, row.key);
	return rc;
}

/* Collective: join the bitmaps of all ranks, a piece at a time to save memory. */
static int join_wanted(struct stored *st, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = st->p->ck->comm;
	int timeout = (int)st->p->ck->config.timeout_ms;
	uint8_t *all = malloc((uint64_t)comm->ranks * TURN);
	uint64_t bytes = (st->n + 7) / 8, now;
	int rc = load_agree(comm, all ? 0 : load_fail(err, -ENOMEM, "out of memory"), err,
			    timeout);

	for (uint64_t at = 0; at < bytes && rc == 0; at += now) {
		now = DCP_MIN(bytes - at, (uint64_t)TURN);
		rc = load_comm_say(
			comm, comm->allgather(comm->ctx, st->wanted + at, now, all, timeout),
			err);
		for (uint64_t i = 0; i < comm->ranks * now && rc == 0; i++)
			st->wanted[at + i % now] |= all[i];
	}
	free(all);
	return rc;
}

/* List the stored tensors that no rank wants; with DCPLOAD_STRICT they are an error. */
static int find_unexpected(struct stored *st, struct dcpload_error *err)
{
	struct dcpload_plan *p = st->p;
	int rc = visit_stored(st, list_unwanted);

	if (rc == 0 && p->flags & DCPLOAD_STRICT && p->list[DCPLOAD_UNEXPECTED].n)
		return load_fail(err, -EINVAL, "%s is stored, and no rank wants it",
				 p->list[DCPLOAD_UNEXPECTED].v[0].key);
	return rc < 0 ? load_fail_err(err, rc, NULL) : 0;
}

/* Collective: gather the summaries of the keys of all ranks. */
static int gather_sums(struct stored *st, struct load_blobs *out, struct dcpload_error *err)
{
	const struct keyset *mine = st->mine;
	const struct key_sum own = { mine->n,
				     dcp_hash64(mine->hash, mine->n * sizeof(*mine->hash)),
				     st->n };
	const struct dcpload_comm *comm = st->p->ck->comm;
	int rc = load_gather_same(comm, &own, sizeof(own), out, err,
				  (int)st->p->ck->config.timeout_ms);

	for (uint32_t r = 1; r < comm->ranks && rc == 0; r++)
		if (((const struct key_sum *)out->at[r])->stored !=
		    ((const struct key_sum *)out->at[0])->stored)
			rc = load_fail(err, -ESTALE,
				       "ranks 0 and %u find different keys stored", r);
	return rc;
}

int load_check_keys(struct dcpload_plan *p, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = p->ck->comm;
	int timeout = (int)p->ck->config.timeout_ms;
	struct keyset mine;
	struct stored st = { .p = p,
			     .mine = &mine,
			     .n = dcp_index_counts(dcp_version_index(p->ck->of.v))->tensors };
	struct load_blobs sums = { 0 };
	int rc = hash_keys(p, &mine);

	st.wanted = calloc(st.n / 8 + 1, 1);
	if (rc == 0)
		rc = st.wanted ? visit_stored(&st, mark_wanted) : -ENOMEM;
	rc = load_agree(comm, rc < 0 ? load_fail_err(err, rc, NULL) : 0, err, timeout);
	if (rc == 0)
		rc = gather_sums(&st, &sums, err);
	if (rc == 0 && p->flags & DCPLOAD_SAME_KEYS)
		rc = compare_keys(p, &mine, &sums, err);
	if (rc == 0)
		rc = join_wanted(&st, err);
	if (rc == 0)
		rc = load_agree(comm, find_unexpected(&st, err), err, timeout);
	load_blobs_free(&sums);
	free(st.wanted);
	free(mine.hash);
	return rc;
}

/* Layouts that list the regions of each rank. */

enum { MAX_FILE = 256 << 20 };

static const char blanks[] = " \t\r\n";

bool load_is_regions(const char *layout)
{
	return dcp_has_extension(layout, DCP_REGIONS_EXT);
}

static size_t trim_length(const char *s, size_t n)
{
	while (n && strchr(blanks, s[n - 1]))
		n--;
	return n;
}

/* Take the number at *s, if there is one. */
static bool take_number(const char **s, uint64_t *out)
{
	*s += strspn(*s, blanks);
	return !dcp_is_digit(**s) || dcp_take_number(s, NULL, DCP_ANY_DIGITS, out);
}

/* "2:4, :, 8:]" */
static bool parse_box(const char *s, struct load_region *r)
{
	s += strspn(s, blanks);
	if (*s == ']')
		return true;
	for (;; s++) {
		uint64_t lo = 0, hi = UINT64_MAX;

		if (r->ndim == DCPLOAD_MAX_NDIM || !take_number(&s, &lo) || *s++ != ':' ||
		    !take_number(&s, &hi))
			return false;
		r->lo[r->ndim] = lo;
		r->hi[r->ndim++] = hi;
		s += strspn(s, blanks);
		if (*s != ',')
			return *s == ']';
	}
}

/* Parse a line. 1: a region; 0: an empty line, or a rank only; -EBADMSG. */
static int parse_line(char *line, struct load_region *r, uint32_t *ranks)
{
	const char *s = line + strspn(line, blanks), *box = NULL;
	uint64_t rank;

	line[trim_length(line, strlen(line))] = '\0';
	if (*s == '#' || !*s)
		return 0;
	if (!dcp_take_number(&s, NULL, DCP_ANY_DIGITS, &rank) || !strchr(blanks, *s) ||
	    rank >= DCP_LAYOUT_MAX_RANKS)
		return -EBADMSG;
	*ranks = DCP_MAX(*ranks, (uint32_t)rank + 1);
	s += strspn(s, blanks);
	*r = (struct load_region){ .rank = (uint32_t)rank, .text = s, .nkey = strlen(s) };
	if (r->nkey && s[r->nkey - 1] == ']')
		box = strrchr(s, '[');
	if (box) {
		r->box = true;
		r->nkey = trim_length(s, (size_t)(box - s));
		if (!r->nkey || !parse_box(box + 1, r))
			return -EBADMSG;
	}
	return r->nkey != 0;
}

int load_regions(const char *path, uint32_t *ranks,
		 int (*add)(void *ctx, const struct load_region *r), void *ctx,
		 struct dcp_err *err)
{
	dcp_auto_free char *line = NULL;
	struct load_region r;
	struct stat st;
	size_t room = 0;
	ssize_t got;
	int rc = 0;
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO, too */
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");

	*ranks = 0;
	if (f)
		dcp_take_fd(&fd);
	if (!f || fstat(fileno(f), &st) < 0)
		rc = dcp_fail(err, -errno, "layout %.300s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE)
		rc = dcp_fail(err, -EBADMSG,
			      "%.300s: not a layout: not a file, or more than %d bytes", path,
			      MAX_FILE);
	for (uint64_t n = 1; rc == 0 && (got = getline(&line, &room, f)) > 0; n++) {
		rc = strlen(line) == (size_t)got ? parse_line(line, &r, ranks) : -EBADMSG;
		if (rc < 0)
			rc = dcp_fail(err, rc, "expected RANK KEY [LO:HI, ...], found %.200s",
				      line);
		if (rc > 0)
			rc = add ? add(ctx, &r) : 0;
		if (rc < 0)
			dcp_err_where(err, rc, "%.200s:%llu", path, (unsigned long long)n);
	}
	if (rc == 0 && !feof(f))
		rc = dcp_fail(err, -EIO, "%.300s cannot be read", path);
	if (rc == 0 && !*ranks)
		rc = dcp_fail(err, -EBADMSG, "%.300s names no rank", path);
	if (f)
		fclose(f);
	return rc;
}

int load_cut_region(const struct load_region *r, const struct dcp_row *row,
		    struct dcp_arena *arena, struct dcp_cut *out, struct dcp_err *err)
{
	uint64_t len[DCPLOAD_MAX_NDIM];
	bool fits = r->ndim == row->ndim;
	char shape[160];
	int rc;

	for (uint32_t d = 0; fits && d < r->ndim; d++) {
		uint64_t hi = r->hi[d] == UINT64_MAX ? row->shape[d] : r->hi[d];

		fits = r->lo[d] <= hi && hi <= row->shape[d];
		len[d] = hi - r->lo[d];
	}
	if (r->box && !fits)
		return dcp_fail(err, -EBADMSG, "%.200s is outside of its shape %s", r->text,
				dcp_dims_text(shape, sizeof(shape), row->shape, row->ndim));
	rc = r->box ? dcp_cut_box(out, row->ndim, r->lo, len, arena)
		    : dcp_cut_whole(out, row->ndim, row->shape, arena);
	return rc < 0 ? dcp_err_say(err, rc) : 1;
}
