/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf/: model files by their number, and the files beside the weights.
 */
#include <errno.h>
#include <string.h>

#include "core/base/number.h"
#include "core/store/version/assets.h"
#include "core/store/version/version.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/hf.h"

int dcpfs_hf_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	const struct dcpfs_hf *hf = dir->ver->hf;
	const char *digits = strncmp(name, "model-", 6) ? "" : name + 6;
	uint64_t n = 1;
	char model[DCPFS_HF_NAME_MAX];
	const struct dcp_assets *a;

	if (!dcpfs_is_hf(dir->ver))
		return -ENOENT;
	if (hf->nfiles > 1 && !dcp_take_number(&digits, NULL, DCP_ANY_DIGITS, &n))
		n = 0;
	if (n >= 1 && n <= hf->nfiles) {
		dcpfs_hf_name(hf, n - 1, model);
		out->ino = dcpfs_ino_pack(dir->i.slot, DCPFS_MODEL, n - 1);
		if (strcmp(name, model) == 0)
			return 0;
	}
	a = dcp_version_assets(dcpfs_opened(dir->ver));
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->at[i].name, name) == 0) {
			out->ino = dcpfs_ino_pack(dir->i.slot, DCPFS_SIDECAR, i + 1);
			return 0;
		}
	return -ENOENT;
}

int dcpfs_hf_list(const struct dcpfs_listing *l, uint64_t first)
{
	const struct dcpfs_version *ver = l->dir.ver;
	const struct dcp_assets *a;
	size_t n;

	if (!dcpfs_is_hf(ver))
		return 0;
	a = dcp_version_assets(dcpfs_opened(ver));
	n = ver->hf->nfiles;
	for (uint64_t i = first; i < n + a->n; i++) {
		char model[DCPFS_HF_NAME_MAX];
		const char *name = i < n ? model : a->at[i - n].name;
		uint64_t ino = i < n ? dcpfs_ino_pack(ver->slot, DCPFS_MODEL, i)
				     : dcpfs_ino_pack(ver->slot, DCPFS_SIDECAR, i - n + 1);

		if (i < n)
			dcpfs_hf_name(ver->hf, i, model);
		if (!dcpfs_emit(l, name, ino, DCPFS_FILE, DCPFS_FIRST_ROW + i))
			break;
	}
	return 0;
}
