/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of all ranks against each other, and against what is stored. Keys go between ranks as hashes. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "tools/load/load_int.h"

/* ---- lists ---- */

int load_list(struct dcpload_plan *p, uint32_t list, const char *key, const char *fmt, ...)
{
	char why[600];
	struct load_listed *l;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (dcp_array_grow((void **)&p->list, &p->cap_list, p->nlist, sizeof(*p->list)) < 0)
		return -ENOMEM;
	l = &p->list[p->nlist++];
	l->list = list;
	l->key = dcp_arena_strndup(&p->arena, key, strlen(key));
	l->why = dcp_arena_strndup(&p->arena, why, strlen(why));
	return l->key && l->why ? 0 : -ENOMEM;
}

int dcpload_plan_list(const struct dcpload_plan *p, uint32_t list, uint64_t i, const char **key,
		      const char **why)
{
	for (size_t k = 0; k < p->nlist; k++)
		if (p->list[k].list == list && i-- == 0) {
			*key = p->list[k].key;
			if (why)
				*why = p->list[k].why;
			return 0;
		}
	return -ENOENT;
}

/* ---- all ranks ---- */

static int by_hash(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Hashes of the keys of this rank, sorted; NULL without memory. */
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

/* The first key that this rank wants and rank @r does not. */
static const char *not_wanted_by(const struct dcpload_plan *p, const uint64_t *mine,
				 const struct load_blobs *b, uint32_t r)
{
	for (size_t i = 0; i < p->nwant; i++)
		if (!bsearch(&mine[i], b->at[r], b->n[r] / sizeof(*mine), sizeof(*mine),
			     by_hash))
			return key_of(p, mine[i]);
	return NULL;
}

static int compare_keys(struct dcpload_plan *p, const uint64_t *mine,
			const struct load_blobs *b, struct dcpload_error *err)
{
	for (uint32_t r = 0; r < p->ck->comm->ranks; r++) {
		const char *key = not_wanted_by(p, mine, b, r);

		if (key)
			return load_fail(
				err, -EINVAL,
				"ranks want different keys: rank %u wants %s, rank %u does "
				"not (%zu keys and %llu)",
				p->ck->comm->rank, key, r, p->nwant,
				(unsigned long long)(b->n[r] / sizeof(*mine)));
	}
	return 0;
}

/* What is stored and nobody wants. */
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
	if (rc == 0 && p->flags & DCPLOAD_STRICT)
		for (size_t i = 0; i < p->nlist; i++)
			if (p->list[i].list == DCPLOAD_UNEXPECTED)
				return load_fail(err, -EINVAL,
						 "%s is stored, and no rank wants it",
						 p->list[i].key);
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
			rc = compare_keys(p, mine, &b, err);
		if (rc == 0)
			rc = find_unexpected(p, &b, err);
		rc = load_agree(comm, rc, err, timeout);
	}
	load_blobs_free(&b);
	free(mine);
	return rc;
}
