/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf/: model files by their number, and the files beside the weights.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/store/version/assets.h"
#include "core/store/version/version.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/hf.h"

int dcpfs_hf_lookup(const struct dcpfs_version *ver, const char *name, uint64_t *ino)
{
	const struct dcp_assets *a = dcp_version_assets(dcpfs_opened(ver));
	unsigned long long n = 1;
	char model[DCPFS_HF_NAME_MAX];

	if (ver->hf->nfiles > 1)
		sscanf(name, "model-%llu", &n);
	if (n >= 1 && n <= ver->hf->nfiles) {
		dcpfs_hf_name(ver->hf, n - 1, model);
		*ino = dcpfs_ino_pack(ver->slot, DCPFS_MODEL, n - 1);
		if (strcmp(name, model) == 0)
			return 0;
	}
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->at[i].name, name) == 0) {
			*ino = dcpfs_ino_pack(ver->slot, DCPFS_SIDECAR, i + 1);
			return 0;
		}
	return -ENOENT;
}

void dcpfs_hf_list(const struct dcpfs_listing *l, const struct dcpfs_version *ver,
		   uint64_t after)
{
	const struct dcp_assets *a = dcp_version_assets(dcpfs_opened(ver));
	size_t n = ver->hf->nfiles;

	after = after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW + 1;
	for (uint64_t i = after; i < n + a->n; i++) {
		char model[DCPFS_HF_NAME_MAX];
		const char *name = i < n ? model : a->at[i - n].name;
		uint64_t ino = i < n ? dcpfs_ino_pack(ver->slot, DCPFS_MODEL, i)
				     : dcpfs_ino_pack(ver->slot, DCPFS_SIDECAR, i - n + 1);

		if (i < n)
			dcpfs_hf_name(ver->hf, i, model);
		if (!dcpfs_tell(l, name, ino, DCPFS_FILE, DCPFS_FIRST_ROW + i))
			return;
	}
}
