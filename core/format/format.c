/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/format.h"

#include <string.h>

#include "core/base/base.h"
#include "core/format/formats.h"
#include "core/parse/dir/dir.h"
#include "core/parse/magic.h"

/*
 * Composer, the megatron rows and parts come first because they take only what has their marks
 * beside something else: a DCP directory with a meta.pt is parts', a DCP directory is not.
 * Paddle's plain files go before torch's: its trainers leave a training_args.bin beside them.
 * torch_bin behind torch_hf: where both containers hold a model, it is the same one. torch_save
 * near the end: it takes any file that torch.save may have written; pickle only what has no
 * other name.
 */
/* clang-format off */
const struct dcp_format *const dcp_formats[] = {
	&dcp_format_composer,
	&dcp_format_megatron,
	&dcp_format_megatron_legacy,
	&dcp_format_torch_items, /* before safetensors: its consolidated twin stands beside it */
	&dcp_format_parts,
	&dcp_format_torch_dcp,
	&dcp_format_torch_dcp_local,
	&dcp_format_paddle_dist, /* before safetensors, which its data files may be */
	&dcp_format_paddle_parts,
	&dcp_format_torch_hf,
	&dcp_format_paddle_plain,
	&dcp_format_torch_bin,
	&dcp_format_torch_ranks,
	/* A converted checkpoint holds model files too, and both hold torch.save files. */
	&dcp_format_deepspeed_universal,
	&dcp_format_deepspeed,
	&dcp_format_archive,
	&dcp_format_torch_save,
	&dcp_format_pickle,
	&dcp_format_numpy, /* last: arrays also lie beside checkpoints of others */
	NULL,
};
/* clang-format on */

const struct dcp_format *dcp_format_probe_but(const struct dcp_format *but,
					      const struct dcp_dir *dir, enum dcp_match *match,
					      char *why, size_t n)
{
	const struct dcp_format *second = NULL;
	char text[512];

	*match = DCP_MATCH_NO;
	for (size_t i = 0; dcp_formats[i]; i++) {
		enum dcp_match m;

		if (dcp_formats[i] == but)
			continue;
		text[0] = '\0';
		m = dcp_formats[i]->probe(dir, text, sizeof(text));
		if (m == DCP_MATCH_YES) {
			*match = m;
			return dcp_formats[i];
		}
		if (m == DCP_MATCH_NO || second)
			continue;
		second = dcp_formats[i];
		*match = m;
		if (n > 0) {
			size_t len = strnlen(text, DCP_MIN(n, sizeof(text)) - 1);

			memcpy(why, text, len);
			why[len] = '\0';
		}
	}
	return second;
}

const struct dcp_format *dcp_format_probe(const struct dcp_dir *dir, enum dcp_match *match,
					  char *why, size_t n)
{
	return dcp_format_probe_but(NULL, dir, match, why, n);
}

const struct dcp_format *dcp_format_by_content(const struct dcp_dir *dir)
{
	uint8_t head[DCP_MAGIC_HEAD];
	struct dcp_input input;
	size_t n;
	int rc;

	if (!dir->is_file || dcp_dir_input(dir, dir->entries[0].name, &input, NULL) < 0)
		return NULL;
	n = (size_t)DCP_MIN(input.src.size, (uint64_t)sizeof(head));
	rc = dcp_source_read(&input.src, 0, head, n);
	dcp_input_close(&input);
	for (size_t i = 0; rc == 0 && dcp_formats[i]; i++)
		if (dcp_formats[i]->begins && dcp_formats[i]->begins(head, n))
			return dcp_formats[i];
	return NULL;
}
