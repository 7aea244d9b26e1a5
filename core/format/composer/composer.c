/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MosaicML Composer.
 *
 *	ep1-ba6-rank0.pt           all of a save: torch.save of {"state": .., "rng": [..]}
 *	ba6-rank0.pt ba6-rank1.pt  a file a rank (until about 0.15): one save, named as rank 0's
 *	composer_states.pt, deepspeed/
 *	                           what is in Composer's archives: the state, and beside it
 *	                           what DeepSpeed wrote, whose keys get "deepspeed." in front
 *	composer_metadata.json, model/, optim/, resumption.pkl
 *	                           its newer interface; keys get the directory's name in front
 *
 * Sharded saves are directories of torch.distributed.checkpoint, read as such. Keys are those
 * of the nested state, lists opened: path components joined with "/" are what ignore_keys
 * matches.
 */
#include "core/format/composer/composer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/format/composer/composer_int.h"
#include "core/format/format.h"
#include "core/format/formats.h"
#include "core/format/nest/inner.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"

/*
 * name: what Composer's files are called, and what is in them.
 */

/* After "<word><digits>", the word not being the end of a longer one; NULL: it is not there.
 */
static const char *behind_number(const char *name, const char *from, const char *word)
{
	for (const char *p = from; (p = strstr(p, word)); p++) {
		const char *end = p + strlen(word);

		if ((p == name || !isalnum((unsigned char)p[-1])) &&
		    isdigit((unsigned char)*end))
			return end + strspn(end, "0123456789");
	}
	return NULL;
}

bool dcp_composer_name(const char *file, char *save, uint64_t *rank)
{
	const char *batch = behind_number(file, file, "ba");
	const char *end = batch ? behind_number(file, batch, "rank") : NULL;
	const char *digits;
	int n;

	if (!end || *end != '.')
		return false;
	digits = dcp_digits_before(file, end);
	n = snprintf(save, DCP_GROUP_MAX, "%.*s0%s", (int)(digits - file), file, end);
	if (!dcp_take_number(&digits, NULL, 9, rank))
		return false;
	return n > 0 && n < DCP_GROUP_MAX;
}

static bool only_state_and_rng(struct dcp_pv root)
{
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(root, &n);

	for (size_t i = 0; i < n; i++)
		if (!dcp_pv_is_str(kv[2 * i], "state") && !dcp_pv_is_str(kv[2 * i], "rng"))
			return false;
	return n > 0;
}

bool dcp_composer_is_state(const struct dcp_torch *t)
{
	static const char *const parts[] = { "timestamp",    "rank_zero_seed", "run_name",
					     "integrations", "metadata",       "algorithms",
					     "callbacks",    "schedulers" };
	struct dcp_pv root = dcp_torch_root(t);
	const struct dcp_pv state = dcp_pv_at(root, "state");

	if (!dcp_pv_is_mapping(root) || !only_state_and_rng(root))
		return false;
	for (size_t i = 0; dcp_pv_is_mapping(state) && i < DCP_LEN(parts); i++)
		if (dcp_pv_get(state, parts[i]))
			return true;
	return false;
}

static const char states[] = "composer_states.pt", deepspeed[] = "deepspeed";

/* ---- names ---- */

static bool is_rank_file(const char *name, uint64_t *rank)
{
	char save[DCP_GROUP_MAX];

	return dcp_has_extension(name, ".pt") && dcp_composer_name(name, save, rank);
}

static bool group(const char *file, char *version)
{
	uint64_t rank;

	return is_rank_file(file, &rank) && dcp_composer_name(file, version, &rank);
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	uint64_t rank;

	if (dcp_dir_has_file(dir, DCP_COMPOSER_METADATA) || dcp_dir_has_file(dir, states))
		return DCP_MATCH_YES;
	if (dcp_dir_has_file(dir, DCP_COMPOSER_RESUMPTION) && dcp_dir_has_dir(dir, "model")) {
		snprintf(why, n, "%s is missing: the save was interrupted or is still running",
			 DCP_COMPOSER_METADATA);
		return DCP_MATCH_INCOMPLETE;
	}
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && is_rank_file(dir->entries[i].name, &rank))
			return dir->is_file ? DCP_MATCH_YES : DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_dir_has_file(dir, DCP_COMPOSER_METADATA) ? DCP_COMPOSER_METADATA : NULL;
}

/* ---- loading ---- */

/* The state out of an archive, and what DeepSpeed put beside it. */
static int load_states(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_composer_file file = { .name = states };
	struct dcp_err why = { 0 };
	int rc = dcp_composer_emit_files(in, &file, 1, err);

	if (rc < 0 || !dcp_dir_has_dir(in->dir, deepspeed))
		return rc;
	rc = dcp_inner_load_at(in, deepspeed, deepspeed, &why);
	if (rc == -EINVAL || rc == -EBADMSG || rc == -ENOTSUP)
		return dcp_emit_broken(in->sink, deepspeed, why.msg);
	if (rc < 0 && err)
		*err = why;
	return rc;
}

static int by_rank(const void *a, const void *b)
{
	const struct dcp_composer_file *x = a, *y = b;

	return DCP_CMP(x->rank, y->rank) ?: strcmp(x->name, y->name);
}

static int load_ranks(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_composer_file *files = calloc(in->dir->n + 1, sizeof(*files));
	size_t n = 0;
	int rc;

	if (!files)
		return -ENOMEM;
	for (size_t i = 0; i < in->dir->n; i++) {
		files[n].name = in->dir->entries[i].name;
		n += !in->dir->entries[i].is_dir && is_rank_file(files[n].name, &files[n].rank);
	}
	DCP_SORT(files, n, by_rank);
	rc = dcp_composer_emit_files(in, files, n, err);
	free(files);
	return rc;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	if (dcp_dir_has_file(in->dir, DCP_COMPOSER_METADATA))
		return dcp_composer_emit_parts(in, err);
	if (dcp_dir_has_file(in->dir, states))
		return load_states(in, err);
	return load_ranks(in, err);
}

const struct dcp_format dcp_format_composer = {
	.name = "composer",
	.what = "MosaicML Composer",
	.probe = probe,
	.group = group,
	.commit_file = commit_file,
	.load = load,
};
