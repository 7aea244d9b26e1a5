/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One torch.save file a rank: what each rank held, written by itself.
 *
 *	checkpoint_<R>.pt                  torch.distributed.checkpoint._experimental
 *	<what>_world_size_<N>_rank_<R>.pt  verl, and others that train with FSDP
 *	<what>_rank<R>.pt, rank_<R>.pt     everybody's own: also .pth and .bin; Accelerate's
 *	                                   LOCAL_STATE_DICT is pytorch_model_fsdp_rank<R>.bin
 *
 * How they are put together: see ranks_load.c. Files of different <what> are versions of
 * their own. Nothing commits such a save, so a rank whose file is missing makes it incomplete.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/torch/ranks.h"
#include "core/parse/dir/dir.h"

enum { MAX_RANKS = 1 << 20 };

/* ---- names ---- */

/* Digits that end at @end, without leading zeros; NULL: none, or too many. */
static const char *number_before(const char *start, const char *end, uint64_t *out)
{
	const char *p = end;

	while (p > start && p[-1] >= '0' && p[-1] <= '9')
		p--;
	*out = 0;
	if (p == end || end - p > 7 || (*p == '0' && end - p > 1))
		return NULL;
	for (const char *q = p; q < end; q++)
		*out = *out * 10 + (uint64_t)(*q - '0');
	return p;
}

bool dcp_rank_name(const char *file, struct dcp_rank_name *out)
{
	static const char world[] = "_world_size_";
	const char *dot = strrchr(file, '.'), *end, *p;

	if (!dot || (strcmp(dot, ".pt") && strcmp(dot, ".pth") && strcmp(dot, ".bin")))
		return false;
	end = number_before(file, dot, &out->rank);
	out->world = 0;
	out->set = file;
	if (!end || *file == '.')
		return false;
	if (dcp_ends_with(file, (size_t)(end - file), "rank_"))
		end -= 5;
	else if (dcp_ends_with(file, (size_t)(end - file), "rank"))
		end -= 4;
	else if (strncmp(file, "checkpoint_", 11) != 0 || end != file + 11)
		return false;
	/* Composer's ep1-ba6-rank0.pt are no parts of one state. */
	if (end > file && end[-1] != '_')
		return false;
	end -= end > file;
	p = number_before(file, end, &out->world);
	if (!p || !dcp_ends_with(file, (size_t)(p - file), world))
		out->world = 0;
	out->len = (size_t)(end - file);
	return out->world == 0 || out->rank < out->world;
}

static bool same_set(const struct dcp_rank_name *a, const struct dcp_rank_name *b)
{
	return a->len == b->len && memcmp(a->set, b->set, a->len) == 0;
}

/* ---- sets ---- */

/* The ranks of one set. */
struct set {
	struct dcp_rank_name first; /* any of its files */
	const char *file;           /* the name of that file */
	uint64_t most;              /* highest rank */
	size_t n, at;               /* how many, and the entry of the first */
	bool zero;                  /* rank 0 is there */
};

static void count_set(const struct dcp_dir *dir, struct set *s)
{
	struct dcp_rank_name name;

	for (size_t i = 0; i < dir->n; i++) {
		if (dir->entries[i].is_dir || !dcp_rank_name(dir->entries[i].name, &name) ||
		    !same_set(&name, &s->first))
			continue;
		if (s->n++ == 0)
			s->at = i;
		s->zero |= name.rank == 0;
		s->most = DCP_MAX(s->most, name.rank);
	}
}

/* A set is one when its name says how many there are, or when rank 0 is not alone; of
 * checkpoint_<R>.pt also when it is. */
static bool is_set(const struct set *s)
{
	return s->first.world ||
	       (s->zero && (s->n > 1 || strncmp(s->file, "checkpoint_", 11) == 0));
}

/* The next set at or behind entry @*at; false: no more. */
static bool next_set(const struct dcp_dir *dir, size_t *at, struct set *s)
{
	for (; *at < dir->n; ++*at) {
		const struct dcp_dirent *e = &dir->entries[*at];
		struct dcp_rank_name before;

		*s = (struct set){ .file = e->name };
		if (e->is_dir || !dcp_rank_name(e->name, &s->first))
			continue;
		/* Names are sorted: files of one set come together, but for odd ones between
		 * them. */
		if (*at > 0 && dcp_rank_name(dir->entries[*at - 1].name, &before) &&
		    same_set(&before, &s->first))
			continue;
		count_set(dir, s);
		if (s->at == *at && is_set(s)) {
			++*at;
			return true;
		}
	}
	return false;
}

static void say_missing(const struct dcp_dir *dir, const struct set *s, char *why, size_t n)
{
	uint64_t ranks = s->first.world ? s->first.world : s->most + 1;
	unsigned char *have = ranks <= MAX_RANKS ? calloc(ranks, 1) : NULL;
	size_t tail = strcspn(s->file + s->first.len, "0123456789");
	struct dcp_rank_name name;
	uint64_t r = 0;

	for (size_t i = 0; have && i < dir->n; i++)
		if (!dir->entries[i].is_dir && dcp_rank_name(dir->entries[i].name, &name) &&
		    same_set(&name, &s->first))
			have[name.rank] = 1;
	while (have && r < ranks && have[r])
		r++;
	snprintf(why, n,
		 "%.*s%" PRIu64 "%s is missing: the save was interrupted or is still running",
		 (int)DCP_MIN(s->first.len + tail, (size_t)200), s->file, r,
		 strrchr(s->file, '.'));
	free(have);
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = DCP_MATCH_NO;
	size_t at = 0, nsets = 0;
	struct set s;

	while (next_set(dir, &at, &s)) {
		uint64_t ranks = s.first.world ? s.first.world : s.most + 1;

		nsets++;
		if (s.n >= ranks && match == DCP_MATCH_NO)
			match = DCP_MATCH_YES;
		if (s.n >= ranks || match == DCP_MATCH_INCOMPLETE)
			continue;
		say_missing(dir, &s, why, n);
		match = DCP_MATCH_INCOMPLETE;
	}
	return nsets > 1 ? DCP_MATCH_MANY : match;
}

static bool group(const char *file, char *version)
{
	struct dcp_rank_name name;

	if (!dcp_rank_name(file, &name) || name.len >= DCP_GROUP_MAX)
		return false;
	memcpy(version, name.set, name.len);
	version[name.len] = '\0';
	if (name.len == 0)
		strcpy(version, "rank");
	return true;
}

const struct dcp_format dcp_format_torch_ranks = {
	.name = "torch-ranks",
	.what = "one torch.save file a rank (FSDP, DCP _experimental)",
	.probe = probe,
	.group = group,
	.load = dcp_ranks_load,
};
