/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the files of items lie.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/number.h"
#include "core/base/sort.h"
#include "core/format/torch_checkpointing/meta/meta_int.h"

static int read_layout(struct dcp_titems_meta *m, struct dcp_pv v,
		       struct dcp_titems_layout *out)
{
	static const char *const names[] = { "TorchSerialization", "JsonSerialization",
					     "RawSerialization", "SafetensorsSerialization" };
	const struct dcp_pv *type = dcp_pv_get(dcp_pv_at(v, "serialization_format"), "type");
	const char *text = dcp_pv_str(dcp_pv_at(v, "file_path"));
	size_t i = 0;

	out->coding = DCP_TITEMS_TORCH;
	if (v.type == DCP_PV_NONE)
		return 0;
	out->path = dcp_arena_strdup(&m->arena, text ?: "");
	while (type && i < DCP_LEN(names) && !dcp_pv_is_str(*type, names[i]))
		i++;
	out->coding = type ? (enum dcp_titems_coding)i : DCP_TITEMS_UNKNOWN;
	if (!text || !*text)
		out->error = "metadata.pkl names no file for it";
	else if (out->coding == DCP_TITEMS_UNKNOWN)
		out->error = "metadata.pkl says that it is written in a way other than "
			     "torch.save, JSON, raw bytes or safetensors";
	return out->path ? 0 : -ENOMEM;
}

const struct dcp_titems_layout *dcp_titems_layout_of(const struct dcp_titems_item *it,
						     uint32_t rank)
{
	return DCP_FIND(&rank, it->layout, it->nlayouts, dcp_by_u32);
}

/* A rank is an int, or a str where the pickle was made from JSON. */
static bool read_rank(struct dcp_pv v, uint32_t *out)
{
	const char *text = dcp_pv_str(v);
	uint64_t n;

	if (text ? !dcp_take_number(&text, NULL, DCP_ANY_DIGITS, &n) || *text
		 : !dcp_pv_u64(v, &n))
		return false;
	*out = (uint32_t)n;
	return n < DCP_TITEMS_MAX_RANKS;
}

static int wrong_rank(struct dcp_err *err)
{
	return dcp_fail(err, -EBADMSG,
			"a file belongs to something that is not a rank below %u",
			DCP_TITEMS_MAX_RANKS);
}

int dcp_titems_read_layouts(struct dcp_titems_meta *m, uint32_t number, struct dcp_pv v,
			    struct dcp_err *err)
{
	struct dcp_titems_layout *all;
	const struct dcp_pv *kv;
	size_t n;

	kv = dcp_pv_pairs(v, &n);
	all = dcp_arena_calloc(&m->arena, n + 1, sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (!read_rank(kv[2 * i], &all[i].rank))
			return wrong_rank(err);
		if (read_layout(m, kv[2 * i + 1], &all[i]) < 0)
			return -ENOMEM;
	}
	DCP_SORT(all, n, dcp_by_u32);
	dcp_titems_items(m)[number].layout = all;
	dcp_titems_items(m)[number].nlayouts = n;
	return 0;
}

/* {rank: {item: layout}} of version 1.0, one layout at a time after those of its item. */
static int add_layout(struct dcp_titems_meta *m, uint32_t rank, struct dcp_pv name,
		      struct dcp_pv v, struct dcp_err *err)
{
	struct dcp_titems_layout *all;
	struct dcp_titems_item *item;
	uint32_t number;
	size_t n;

	if (!dcp_pv_str(name))
		return dcp_fail(err, -EBADMSG, "a file belongs to an item that is not a str");
	if (dcp_titems_get_item(m, dcp_pv_str(name), &number) < 0)
		return -ENOMEM;
	item = &dcp_titems_items(m)[number];
	n = item->nlayouts;
	all = (struct dcp_titems_layout *)(uintptr_t)item->layout;
	if ((n & (n - 1)) == 0) { /* full: a power of two, or nothing */
		all = dcp_arena_calloc(&m->arena, n ? 2 * n : 1, sizeof(*all));
		if (!all)
			return -ENOMEM;
		if (n)
			memcpy(all, item->layout, n * sizeof(*all));
		item->layout = all;
	}
	all[n].rank = rank;
	item->nlayouts++;
	return read_layout(m, v, &all[n]) < 0 ? -ENOMEM : 0;
}

int dcp_titems_read_flat_layouts(struct dcp_titems_meta *m, struct dcp_pv root,
				 struct dcp_err *err)
{
	size_t n, k;
	const struct dcp_pv *kv = dcp_pv_pairs(dcp_pv_at(root, "rank_to_layout_info_mappings"),
					       &n),
			    *of;
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t rank;

		if (!read_rank(kv[2 * i], &rank))
			return wrong_rank(err);
		of = dcp_pv_pairs(kv[2 * i + 1], &k);
		for (size_t j = 0; j < k && rc == 0; j++)
			rc = add_layout(m, rank, of[2 * j], of[2 * j + 1], err);
	}
	for (size_t i = 0; rc == 0 && i < m->names.n; i++) {
		const struct dcp_titems_item *it = &dcp_titems_items(m)[i];

		DCP_SORT((struct dcp_titems_layout *)(uintptr_t)it->layout, it->nlayouts,
			 dcp_by_u32);
	}
	return rc;
}
