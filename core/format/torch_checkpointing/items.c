/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file for each item of the state and each rank: torch_checkpointing, the successor of
 * torch.distributed.checkpoint's _experimental.
 *
 *	<item>_<rank>.pt    by torch.save; or wherever the item's layout puts it, as .pt, .json,
 *	                    .safetensors or raw bytes
 *	metadata.pkl        how tensors are cut and where files lie, of items with a resharder
 *	tmp_<name>/         where it is written before it is renamed (see model/order.h)
 *
 * With metadata.pkl a directory is one when a file or directory in it has a rank in its name:
 * others too keep a file of that name. Without it the name "<item>_<rank>.pt" alone is all
 * there is, and model_0.pt, model_1.pt are more often the epochs of a training. So there must be
 * two items at least, all files of weights must be called so, and their ranks must be 0 to
 * some n.
 *
 * Beside the ranks' files may lie what its consolidation made of them:
 * <item>-00001-of-00002.safetensors. That is the same once more, and left out.
 */
#include "core/format/torch_checkpointing/items_int.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/number.h"
#include "core/format/formats.h"
#include "core/format/torch/ranks.h"
#include "core/origin/dir/dir.h"

static const char metadata[] = "metadata.pkl";

/* ---- which directories ---- */

static bool has_rank(const struct dcp_dirent *e)
{
	struct dcp_titems_name name;
	uint32_t rank;

	return e->is_dir ? dcp_titems_rank_dir(e->name, &rank)
			 : dcp_titems_name(e->name, &name) && name.ranked;
}

/* The item and rank of a file that needs no metadata.pkl to be known. */
static bool is_plain(const char *file, struct dcp_titems_name *out)
{
	struct dcp_rank_name other;

	/* torchtune numbers parts and epochs: hf_model_0001_0.pt */
	return dcp_titems_name(file, out) && out->coding != DCP_TITEMS_JSON && out->ranked &&
	       !dcp_is_digit(file[out->len - 1]) && !dcp_rank_name(file, &other);
}

static bool all_ranks(const struct dcp_dir *dir)
{
	unsigned char *have = calloc(dir->n + 1, 1);
	struct dcp_titems_name name;
	uint32_t most = 0;
	size_t n = 0;

	for (size_t i = 0; have && i < dir->n; i++) {
		if (dir->entries[i].is_dir || !is_plain(dir->entries[i].name, &name))
			continue;
		if (name.rank >= dir->n) {
			most = name.rank; /* more than there are files */
			break;
		}
		n += !have[name.rank];
		have[name.rank] = 1;
		most = DCP_MAX(most, name.rank);
	}
	free(have);
	return n > 0 && n == (size_t)most + 1;
}

/* A file that may hold tensors. */
static bool is_weights(const char *file)
{
	static const char *const known[] = { ".pt", ".pth", ".bin", ".ckpt", ".safetensors" };
	const char *dot = strrchr(file, '.');

	for (size_t i = 0; dot && i < DCP_LEN(known); i++)
		if (strcmp(dot, known[i]) == 0)
			return true;
	return false;
}

/* Several items, each a file a rank, and no other weights? */
static bool is_plain_dir(const struct dcp_dir *dir)
{
	const char *first = NULL;
	size_t len = 0;
	bool several = false;

	for (size_t i = 0; i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		struct dcp_titems_name name;

		if (e->is_dir || !is_weights(e->name))
			continue;
		if (!is_plain(e->name, &name))
			return false;
		several |= first && (name.len != len || memcmp(first, name.item, len) != 0);
		first = name.item;
		len = name.len;
	}
	return several && all_ranks(dir);
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	if (!dcp_dir_has_file(dir, metadata))
		return is_plain_dir(dir) ? DCP_MATCH_YES : DCP_MATCH_NO;
	for (size_t i = 0; i < dir->n; i++)
		if (has_rank(&dir->entries[i]))
			return DCP_MATCH_YES;
	return DCP_MATCH_NO;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_dir_find(dir, metadata) ? metadata : NULL;
}

const struct dcp_format dcp_format_torch_items = {
	.name = "torch-checkpointing",
	.what = "torch_checkpointing",
	.probe = probe,
	.commit_file = commit_file,
	.load = dcp_titems_load,
};
