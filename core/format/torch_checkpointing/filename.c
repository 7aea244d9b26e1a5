/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filename: what the name of a file says: item, rank, form.
 */
#include "core/format/torch_checkpointing/items_int.h"

#include <string.h>

#include "core/base/base.h"
#include "core/base/number.h"
#include "core/format/hf/name.h"

static bool known_extension(const char *dot, enum dcp_titems_coding *out)
{
	static const struct {
		const char *name;
		enum dcp_titems_coding coding;
	} known[] = {
		{ ".pt", DCP_TITEMS_TORCH },
		{ ".pth", DCP_TITEMS_TORCH },
		{ ".json", DCP_TITEMS_JSON },
		{ ".safetensors", DCP_TITEMS_SAFETENSORS },
	};

	for (size_t i = 0; dot && i < DCP_LEN(known); i++)
		if (strcmp(dot, known[i].name) == 0) {
			*out = known[i].coding;
			return true;
		}
	return false;
}

/* The number that [p, end) is, all of it, without leading zeros. */
static bool is_number(const char *p, const char *end, uint32_t *out)
{
	uint64_t n;

	if ((*p == '0' && end - p > 1) || !dcp_take_number(&p, end, 7, &n) || p != end ||
	    n >= DCP_TITEMS_MAX_RANKS)
		return false;
	*out = (uint32_t)n;
	return true;
}

bool dcp_titems_rank_dir(const char *name, uint32_t *rank)
{
	const char *p = name + 4;

	if (strncmp(name, "rank", 4) != 0)
		return false;
	p += *p == '_';
	return is_number(p, p + strlen(p), rank);
}

bool dcp_titems_name(const char *file, struct dcp_titems_name *out)
{
	const char *dot = strrchr(file, '.'), *p = dot;
	struct dcp_hf_name unused;

	*out = (struct dcp_titems_name){ .item = file };
	if (*file == '.' || !known_extension(dot, &out->coding))
		return false;
	if (dcp_hf_name(file, &unused) == DCP_HF_SAFETENSORS_INDEX || unused.nparts)
		return false;
	while (p > file && *p != '_')
		p--;
	out->ranked = p > file && is_number(p + 1, dot, &out->rank);
	out->len = (size_t)((out->ranked ? p : dot) - file);
	/* model_rank_3.pt */
	if (out->ranked && out->len > 5 && memcmp(file + out->len - 5, "_rank", 5) == 0)
		out->len -= 5;
	return out->len > 0;
}
