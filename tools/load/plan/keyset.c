/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the keys of all ranks with each other and with what is stored. Ranks exchange hashes of keys. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "tools/load/load.h"

/* ---- lists ---- */

int load_list(struct dcpload_plan *p, uint32_t list, const char *key, const char *fmt, ...)
{
	char why[600];
	struct load_listed *l;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (dcp_array_grow((void **)&p->list[list].v, &p->list[list].cap, p->list[list].n,
			   sizeof(*l)) < 0)
		return -ENOMEM;
	l = &p->list[list].v[p->list[list].n++];
	l->key = dcp_arena_strndup(&p->arena, key, strlen(key));
	l->why = dcp_arena_strndup(&p->arena, why, strlen(why));
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

static int by_hash(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Sorted hashes of the keys of this rank; NULL: out of memory. */
static uint64_t *hash_keys(const struct dcpload_plan *p)
{
	uint64_t *hash = calloc(p->nwant + 1, sizeof(*hash));

	for (size_t i = 0; hash && i < p->nwant; i++)
		hash[i] = dcp_hash64(p->want[i].key, strlen(p->want[i].key));
	if (hash)
		qsort(hash, p->nwant, sizeof(*hash), by_hash);
	return hash;
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
	uint64_t n, hash; /* of the first of them */
};

static struct lacking lacking(const struct load_blobs *b, uint32_t wanted_by, uint32_t not_by)
{
	const uint64_t *h = b->at[wanted_by];
	struct lacking l = { 0 };

	for (uint64_t i = 0; i < b->n[wanted_by] / sizeof(*h); i++) {
		if ((i && h[i] == h[i - 1]) ||
		    bsearch(&h[i], b->at[not_by], b->n[not_by] / sizeof(*h), sizeof(*h),
			    by_hash))
			continue;
		l.hash = l.n++ ? l.hash : h[i];
	}
	return l;
}

static int differ(struct dcpload_plan *p, uint32_t r, struct lacking more, struct lacking less,
		  struct dcpload_error *err)
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

/* -EINVAL if ranks want different keys. All ranks get the same result. */
static int compare_keys(struct dcpload_plan *p, const struct load_blobs *b,
			struct dcpload_error *err)
{
	for (uint32_t r = 1; r < p->ck->comm->ranks; r++) {
		struct lacking more = lacking(b, 0, r), less = lacking(b, r, 0);

		if (more.n || less.n)
			return differ(p, r, more, less, err);
	}
	return 0;
}

/* List what is stored and no rank wants; with DCPLOAD_STRICT it is an error. */
static int find_unexpected(struct dcpload_plan *p, const struct load_blobs *b,
			   struct dcpload_error *err)
{
	struct dcp_index_scan *scan;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(p->ck->v), DCP_ROW_TENSOR, 0, true, &scan);

	if (rc < 0)
		return load_fail_err(err, rc, NULL);
	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		uint64_t hash = dcp_hash64(row.key, strlen(row.key));
		bool found = false;

		for (uint32_t r = 0; r < p->ck->comm->ranks && !found; r++)
			found = bsearch(&hash, b->at[r], b->n[r] / sizeof(hash), sizeof(hash),
					by_hash) != NULL;
		rc = found ? 0
			   : load_list(p, DCPLOAD_UNEXPECTED, row.key,
				       "stored, and wanted by no rank");
	}
	dcp_index_scan_end(scan);
	if (rc == 0 && p->flags & DCPLOAD_STRICT && p->list[DCPLOAD_UNEXPECTED].n)
		return load_fail(err, -EINVAL, "%s is stored, and no rank wants it",
				 p->list[DCPLOAD_UNEXPECTED].v[0].key);
	return rc < 0 ? load_fail_err(err, rc, NULL) : 0;
}

int load_check_keys(struct dcpload_plan *p, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = p->ck->comm;
	int timeout = (int)p->ck->config.timeout_ms;
	uint64_t *mine = hash_keys(p);
	struct load_blobs b = { 0 };
	int rc = load_agree(comm, mine ? 0 : load_fail(err, -ENOMEM, "out of memory"), err,
			    timeout);

	if (rc == 0)
		rc = load_gather(comm, mine, p->nwant * sizeof(*mine), &b, err, timeout);
	if (rc == 0) {
		if (p->flags & DCPLOAD_SAME_KEYS)
			rc = compare_keys(p, &b, err);
		if (rc == 0)
			rc = find_unexpected(p, &b, err);
		rc = load_agree(comm, rc, err, timeout);
	}
	load_blobs_free(&b);
	free(mine);
	return rc;
}
