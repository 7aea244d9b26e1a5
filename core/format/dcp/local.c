/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank-local metadata (save with use_collectives=False): each rank wrote __<rank>.metadata
 * about its own chunks, and none wrote a common .metadata. torch lets a rank load only what it
 * wrote itself; here the files are one checkpoint. Equal boxes of several ranks are one
 * chunk, the lowest rank's; the next rank's is read when that cannot be. Objects that differ
 * between ranks: see object.c.
 *
 * Nothing says how many ranks there were. A rank whose data files are there without its
 * metadata died; a rank that left nothing at all shows as missing elements.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/format/dcp/dcp.h"
#include "core/format/formats.h"
#include "core/origin/dir/dir.h"

static bool has_metadata(const struct dcp_dir *dir, uint64_t rank)
{
	char name[48];

	snprintf(name, sizeof(name), "__%" PRIu64 ".metadata", rank);
	return dcp_dir_find(dir, name) != NULL;
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = DCP_MATCH_NO;
	uint64_t rank;

	if (dcp_dir_find(dir, ".metadata"))
		return DCP_MATCH_NO;
	for (size_t i = 0; i < dir->n && match == DCP_MATCH_NO; i++)
		if (dcp_tdcp_is_rank_name(dir->entries[i].name, ".metadata", &rank))
			match = DCP_MATCH_YES;
	if (match == DCP_MATCH_NO)
		return match;
	for (size_t i = 0; i < dir->n; i++) {
		const char *name = dir->entries[i].name;

		if (!dcp_tdcp_is_data_name(name, &rank) &&
		    !dcp_tdcp_is_rank_name(name, ".metadata.tmp", &rank))
			continue;
		if (has_metadata(dir, rank))
			continue;
		snprintf(why, n,
			 "__%" PRIu64 ".metadata is missing, but %s is there: the save was "
			 "interrupted or is still running",
			 rank, name);
		return DCP_MATCH_INCOMPLETE;
	}
	return match;
}

/* "ranks 0-2, 5" */
static void say_ranks(char *buf, size_t size, const uint64_t *rank, size_t n)
{
	size_t at = (size_t)snprintf(buf, size, n == 1 ? "rank" : "ranks");

	for (size_t i = 0, j; i < n && at + 48 < size; i = j) {
		for (j = i + 1; j < n && rank[j] == rank[j - 1] + 1; j++)
			;
		at += (size_t)snprintf(buf + at, size - at, "%s%" PRIu64, i ? ", " : " ",
				       rank[i]);
		if (j - i > 1)
			at += (size_t)snprintf(buf + at, size - at, "-%" PRIu64, rank[j - 1]);
		if (j < n && at + 48 >= size)
			snprintf(buf + at, size - at, ", ...");
	}
}

static int read_ranks(struct dcp_tdcp *d, const uint64_t *rank, size_t n, struct dcp_err *err)
{
	for (size_t i = 0; i < n; i++) {
		char name[48];
		int rc;

		snprintf(name, sizeof(name), "__%" PRIu64 ".metadata", rank[i]);
		rc = dcp_tdcp_read(d, name, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Names of the ranks for keys of their own, all in one allocation. */
static const char **name_ranks(const uint64_t *rank, size_t n)
{
	const size_t each = 32;
	const char **names = malloc(n * (sizeof(*names) + each));
	char *text = (char *)(names + n);

	for (size_t i = 0; names && i < n; i++, text += each) {
		snprintf(text, each, "rank%" PRIu64, rank[i]);
		names[i] = text;
	}
	return names;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_tdcp d = { .in = in };
	uint64_t *rank = malloc((in->dir->n + 1) * sizeof(*rank));
	const char **names = NULL;
	char have[256] = "", missing[300];
	size_t n = 0;
	int rc = dcp_tmeta_init(&d.meta);

	for (size_t i = 0; rank && i < in->dir->n; i++)
		n += dcp_tdcp_is_rank_name(in->dir->entries[i].name, ".metadata", &rank[n]);
	if (rank && n > 0) {
		DCP_SORT(rank, n, dcp_by_u64);
		names = name_ranks(rank, n);
		say_ranks(have, sizeof(have), rank, n);
	}
	snprintf(missing, sizeof(missing), "there is metadata of %s only", have);
	d.missing = missing;
	d.rank = names;
	if (rc == 0 && n == 0 && rank)
		rc = dcp_fail(err, -ENOENT, "no __<rank>.metadata");
	else if (rc < 0 || !names)
		rc = dcp_fail(err, -ENOMEM, "out of memory for metadata");
	if (rc == 0)
		rc = read_ranks(&d, rank, n, err);
	if (rc == 0)
		rc = dcp_tdcp_emit(&d, err);
	if (rc == 0)
		rc = dcp_tdcp_emit_rest(&d);
	if (rc == 0)
		rc = dcp_emit_meta(in->sink, "rank_files", have);
	dcp_tmeta_finish(&d.meta);
	free(names);
	free(rank);
	return rc;
}

const struct dcp_format dcp_format_torch_dcp_local = {
	.name = "torch-dcp-local",
	.what = "torch.distributed.checkpoint with rank-local metadata",
	.probe = probe,
	.load = load,
};
