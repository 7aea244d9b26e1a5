/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filename: what the names of files say, of data and of metadata.
 */
#include <string.h>

#include "core/base/number.h"
#include "core/format/paddle/dist/dist_int.h"
#include "core/origin/dir/dir.h"

bool dcp_pdist_is_meta(const char *name, uint64_t *uid)
{
	return dcp_take_number(&name, NULL, 18, uid) && strcmp(name, ".metadata") == 0;
}

bool dcp_pdist_is_data(const char *name, uint64_t *rank, uint64_t *uid)
{
	return dcp_take_number(&name, NULL, 18, rank) && *name++ == '_' &&
	       dcp_take_number(&name, NULL, 18, uid) &&
	       (strcmp(name, ".distcp") == 0 || strcmp(name, ".safetensors") == 0);
}

/* The id in a name of any kind. A .safetensors file proves nothing by itself. */
bool dcp_pdist_uid(const char *name, uint64_t *uid, bool *meta, bool *proof)
{
	uint64_t rank;
	const char *p = name;

	*meta = dcp_pdist_is_meta(name, uid);
	*proof = true;
	if (*meta || (dcp_take_number(&p, NULL, 18, uid) && strcmp(p, ".metadata.lock") == 0))
		return true;
	*proof = !strstr(name, ".safetensors");
	return dcp_pdist_is_data(name, &rank, uid);
}

static void count_uid(uint64_t *n, uint64_t *newest, uint64_t uid)
{
	/* one or several is all that is asked */
	if (*n == 0 || uid != *newest)
		++*n;
	if (*n == 1 || uid > *newest)
		*newest = uid;
}

bool dcp_pdist_names(const struct dcp_dir *dir, struct dcp_pdist_names *out)
{
	struct dcp_pdist_names s = { 0 };
	uint64_t any = 0, meta_newest = 0, data_newest = 0;
	bool proven = false;

	for (size_t i = 0; i < dir->n; i++) {
		uint64_t uid;
		bool meta, proof;

		if (dir->entries[i].is_dir ||
		    !dcp_pdist_uid(dir->entries[i].name, &uid, &meta, &proof))
			continue;
		proven |= proof;
		count_uid(&s.nuids, &any, uid);
		if (meta)
			count_uid(&s.nmeta, &meta_newest, uid);
		else
			count_uid(&s.ndata, &data_newest, uid);
	}
	s.newest = s.nmeta ? meta_newest : any;
	s.merged = s.nmeta > 1 && s.ndata == 1;
	if (s.merged)
		s.newest = data_newest;
	*out = s;
	return proven;
}
