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

/* Model files, and their list after them where there are several. */
static size_t nweights(const struct dcpfs_hf *hf)
{
	return hf->nfiles + (hf->nfiles > 1);
}

static uint64_t ino_of_weights(const struct dcpfs_version *ver, uint64_t n)
{
	return n < ver->hf->nfiles ? dcpfs_ino_pack(ver->slot, DCPFS_MODEL, n)
				   : dcpfs_ino_pack(ver->slot, DCPFS_HF_INDEX, 0);
}

int dcpfs_hf_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	const struct dcpfs_hf *hf = dir->ver->hf;
	const char *digits = strchr(name, '-');
	char weights[DCPFS_HF_NAME_MAX] = "";
	const struct dcp_assets *a;
	uint64_t n = 0;

	if (!dcpfs_is_hf(dir->ver))
		return -ENOENT;
	if (digits && hf->nfiles > 1) {
		digits++;
		dcp_take_number(&digits, NULL, DCP_ANY_DIGITS, &n);
	}
	n = n >= 1 && n <= hf->nfiles ? n - 1 : nweights(hf) - 1;
	if (hf->nfiles)
		dcpfs_hf_name(dir->ver, n, weights);
	if (strcmp(name, weights) == 0) {
		out->ino = ino_of_weights(dir->ver, n);
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
	n = nweights(ver->hf);
	for (uint64_t i = first; i < n + a->n; i++) {
		char weights[DCPFS_HF_NAME_MAX];
		const char *name = i < n ? weights : a->at[i - n].name;
		uint64_t ino = i < n ? ino_of_weights(ver, i)
				     : dcpfs_ino_pack(ver->slot, DCPFS_SIDECAR, i - n + 1);

		if (i < n)
			dcpfs_hf_name(ver, i, weights);
		if (!dcpfs_emit(l, name, ino, DCPFS_FILE, DCPFS_FIRST_ROW + i))
			break;
	}
	return 0;
}
