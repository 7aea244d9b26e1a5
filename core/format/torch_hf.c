/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of safetensors files: what DCP's HuggingFaceStorageWriter leaves, and what
 * Hugging Face's own save_pretrained() does.
 *
 *	*.safetensors                        whole tensors, or shards with DCP_SHARDING_INFO
 *	<model>.safetensors.index.json       which file holds which key; only with whole tensors
 *	sharded/<shard>.safetensors          read only when no file stands beside it: a
 *	                                     consolidated save keeps its shards there
 *
 * Nothing commits such a save. Names of the form <model>-<i>-of-<n> say how many there should
 * be, in all ranks' files (shard-<rank>-<model>-<i>-of-<n>) together.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/log.h"
#include "core/format/formats.h"
#include "core/format/torch_hf_int.h"
#include "core/model/tensor.h"
#include "core/parse/dir.h"
#include "core/parse/json.h"

#define SUFFIX ".safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"
#define MAX_PARTS 100000 /* five digits */
#define MAX_GROUPS 16    /* models side by side whose parts are counted */

static bool ends_with(const char *s, const char *suffix)
{
	size_t n = strlen(s), m = strlen(suffix);

	return n >= m && strcmp(s + n - m, suffix) == 0;
}

static bool is_part(const struct dcp_dirent *e)
{
	return !e->is_dir && ends_with(e->name, SUFFIX);
}

static size_t count_parts(const struct dcp_dir *dir)
{
	size_t n = 0;

	for (size_t i = 0; i < dir->n; i++)
		n += is_part(&dir->entries[i]);
	return n;
}

static const char *index_name(const struct dcp_dir *dir)
{
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && ends_with(dir->entries[i].name, INDEX_SUFFIX))
			return dir->entries[i].name;
	return NULL;
}

/* The parts of one model: <name>-<i>-of-<n>. */
struct group {
	const char *name;
	size_t len;
	uint32_t n, have;
	uint8_t *seen; /* bit i - 1; NULL: memory was out, taken as complete */
};

/* Five digits at @p. */
static bool five_digits(const char *p, uint32_t *out)
{
	*out = 0;
	for (int i = 0; i < 5; i++) {
		if (p[i] < '0' || p[i] > '9')
			return false;
		*out = *out * 10 + (uint32_t)(p[i] - '0');
	}
	return true;
}

/* Take "[shard-RRRRR-]<name>-IIIII-of-NNNNN.safetensors" apart. */
static bool parse_part(const char *file, const char **name, size_t *len, uint32_t *i,
		       uint32_t *n)
{
	size_t all = strlen(file), tail = strlen("-00001-of-00003" SUFFIX);
	const char *p = file + all - tail;
	uint32_t rank;

	if (all <= tail || p[0] != '-' || strncmp(p + 6, "-of-", 4) != 0 ||
	    !five_digits(p + 1, i) || !five_digits(p + 10, n))
		return false;
	if (strncmp(file, "shard-", 6) == 0 && five_digits(file + 6, &rank) && file[11] == '-')
		file += 12;
	*name = file;
	*len = file < p ? (size_t)(p - file) : 0;
	return *i >= 1 && *i <= *n && *n < MAX_PARTS;
}

static struct group *find_group(struct group *groups, size_t *ngroups, const char *name,
				size_t len, uint32_t n)
{
	struct group *g;

	for (size_t i = 0; i < *ngroups; i++)
		if (groups[i].n == n && groups[i].len == len &&
		    memcmp(groups[i].name, name, len) == 0)
			return &groups[i];
	if (*ngroups == MAX_GROUPS)
		return NULL;
	g = &groups[(*ngroups)++];
	*g = (struct group){ name, len, n, 0, calloc(n / 8 + 1, 1) };
	return g;
}

static void count_part(struct group *groups, size_t *ngroups, const char *file)
{
	const char *name;
	uint32_t i, n;
	size_t len;
	struct group *g;

	if (!parse_part(file, &name, &len, &i, &n))
		return;
	g = find_group(groups, ngroups, name, len, n);
	if (!g || !g->seen || g->seen[(i - 1) / 8] & (1u << ((i - 1) % 8)))
		return;
	g->seen[(i - 1) / 8] |= (uint8_t)(1u << ((i - 1) % 8));
	g->have++;
}

static enum dcp_match check_parts(const struct dcp_dir *dir, char *why, size_t size)
{
	enum dcp_match match = DCP_MATCH_YES;
	struct group groups[MAX_GROUPS];
	size_t ngroups = 0;

	for (size_t i = 0; i < dir->n; i++)
		if (is_part(&dir->entries[i]))
			count_part(groups, &ngroups, dir->entries[i].name);
	for (size_t g = 0; g < ngroups; g++) {
		uint32_t i = 0;

		if (groups[g].seen && groups[g].have < groups[g].n && match == DCP_MATCH_YES) {
			while (groups[g].seen[i / 8] & (1u << (i % 8)))
				i++;
			snprintf(why, size,
				 "%.*s-%05u-of-%05u" SUFFIX " is missing (%u of %u are there): "
				 "the save was interrupted or is still running",
				 (int)DCP_MIN(groups[g].len, (size_t)100), groups[g].name,
				 i + 1, groups[g].n, groups[g].have, groups[g].n);
			match = DCP_MATCH_INCOMPLETE;
		}
		free(groups[g].seen);
	}
	return match;
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	const struct dcp_dirent *below = dcp_dir_find(dir, "sharded");
	enum dcp_match match = DCP_MATCH_NO;
	struct dcp_dir sharded;

	if (count_parts(dir) > 0)
		return check_parts(dir, why, n);
	if (index_name(dir)) {
		snprintf(why, n, "%s is there, but no safetensors file", index_name(dir));
		match = DCP_MATCH_INCOMPLETE;
	}
	if (!below || !below->is_dir || dcp_dir_open_at(dir, "sharded", &sharded, NULL) < 0)
		return match;
	if (count_parts(&sharded) > 0)
		match = check_parts(&sharded, why, n);
	dcp_dir_close(&sharded);
	return match;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return index_name(dir);
}

static int add_files(struct dcp_hf *h, const struct dcp_dir *dir, const char *below)
{
	h->files = dcp_arena_calloc(&h->arena, dir->n + 1, sizeof(*h->files));
	if (!h->files)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++) {
		size_t n = strlen(below) + strlen(dir->entries[i].name) + 1;
		char *name;

		if (!is_part(&dir->entries[i]))
			continue;
		name = dcp_arena_alloc(&h->arena, n);
		if (!name)
			return -ENOMEM;
		snprintf(name, n, "%s%s", below, dir->entries[i].name);
		h->files[h->nfiles++].name = name;
	}
	return 0;
}

static int list_files(struct dcp_hf *h, struct dcp_err *err)
{
	struct dcp_dir sharded;
	int rc;

	if (count_parts(h->in->dir) > 0) {
		rc = add_files(h, h->in->dir, "");
	} else {
		rc = dcp_dir_open_at(h->in->dir, "sharded", &sharded, err);
		if (rc < 0)
			return rc;
		rc = add_files(h, &sharded, "sharded/");
		dcp_dir_close(&sharded);
	}
	if (rc < 0)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory for file names");
	if (h->nfiles == 0)
		return dcp_fail(err, -ENOENT, DCP_ERR_NO_OFFSET, "no safetensors file");
	return 0;
}

static int tell_facts(struct dcp_hf *h)
{
	const struct dcp_sink *sink = h->in->sink;
	char text[24];
	int rc = sink->meta(sink->ctx, "framework", h->dcp ? "torch" : "safetensors");

	snprintf(text, sizeof(text), "%zu", h->nfiles);
	if (rc == 0)
		rc = sink->meta(sink->ctx, "world_files", text);
	for (size_t i = 0; i < h->nfiles && rc == 0; i++) {
		if (!h->files[i].error)
			continue;
		dcp_log(h->in->log, DCP_LOG_WARN, "%s", h->files[i].error);
		rc = sink->meta(sink->ctx, "broken_file", h->files[i].error);
	}
	return rc;
}

static int read_all(struct dcp_hf *h, struct dcp_err *err)
{
	const struct dcp_progress *progress = h->in->progress;
	int rc = list_files(h, err);

	h->index_name = index_name(h->in->dir);
	if (rc == 0 && h->index_name)
		rc = dcp_hf_read_index(h, err);
	for (uint32_t i = 0; i < h->nfiles && rc == 0; i++) {
		rc = dcp_hf_read(h, i, err);
		if (progress)
			progress->tell(progress->ctx, i + 1, h->nfiles, "files");
	}
	return rc;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_hf h = { .in = in };
	int rc;

	dcp_arena_init(&h.arena, DCP_HF_MEMORY);
	rc = read_all(&h, err);
	if (rc == 0)
		rc = dcp_hf_tell(&h, err);
	if (rc == 0)
		rc = tell_facts(&h);
	dcp_json_free(h.index);
	dcp_intern_finish(&h.names);
	dcp_buf_finish(&h.keys);
	dcp_buf_finish(&h.shards);
	dcp_buf_finish(&h.num);
	dcp_buf_finish(&h.pieces);
	dcp_arena_finish(&h.arena);
	return rc;
}

const struct dcp_format dcp_format_torch_hf = {
	.name = "safetensors",
	.what = "safetensors files (Hugging Face, or DCP's HuggingFaceStorageWriter)",
	.probe = probe,
	.commit_file = commit_file,
	.load = load,
};
