/* SPDX-License-Identifier: Apache-2.0 */
/* hf/: model files by number, generated files, and the files beside the weights. */
#include <errno.h>
#include <string.h>

#include "core/base/number.h"
#include "core/model/name.h"
#include "core/store/version/assets.h"
#include "core/store/version/version.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/hf.h"

/* Model files, followed by their index if there are several. */
static size_t nweights(const struct dcpfs_hf *hf)
{
	return hf->nfiles + (hf->nfiles > 1);
}

static const struct dcp_made *find_made(const struct dcp_made *made, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(made[i].name, name) == 0)
			return &made[i];
	return NULL;
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
	char shown[DCP_NAME_MAX + 1];
	char weights[DCP_SAFETENSORS_NAME] = "";
	const struct dcp_made *made, *found;
	const struct dcp_assets *a;
	uint64_t n = 0;
	size_t nmade;

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
	made = dcp_version_made(dcpfs_opened(dir->ver), &nmade);
	found = find_made(made, nmade, name);
	if (found) {
		out->ino = dcpfs_ino_pack(dir->i.slot, DCPFS_HF_MADE, (uint64_t)(found - made));
		return 0;
	}
	a = dcp_version_assets(dcpfs_opened(dir->ver));
	for (size_t i = 0; i < a->n; i++)
		if (dcpfs_sidecar_shown(dir->ver, i + 1, shown, &out->ino) &&
		    strcmp(shown, name) == 0)
			return 0;
	return -ENOENT;
}

int dcpfs_hf_list(const struct dcpfs_listing *l, uint64_t first)
{
	const struct dcpfs_version *ver = l->dir.ver;
	const struct dcp_made *made;
	const struct dcp_assets *a;
	size_t n, nmade;

	if (!dcpfs_is_hf(ver))
		return 0;
	a = dcp_version_assets(dcpfs_opened(ver));
	made = dcp_version_made(dcpfs_opened(ver), &nmade);
	n = nweights(ver->hf);
	for (uint64_t i = first; i < n + nmade + a->n; i++) {
		uint64_t asset = i - n - nmade, ino;
		char weights[DCP_SAFETENSORS_NAME], shown[DCP_NAME_MAX + 1];
		const char *name = weights;

		if (i < n) {
			dcpfs_hf_name(ver, i, weights);
			ino = ino_of_weights(ver, i);
		} else if (i < n + nmade) {
			name = made[i - n].name;
			ino = dcpfs_ino_pack(ver->slot, DCPFS_HF_MADE, i - n);
		} else {
			name = shown;
			if (!dcpfs_sidecar_shown(ver, asset + 1, shown, &ino) ||
			    find_made(made, nmade, name))
				continue;
		}
		if (!dcpfs_emit(l, name, ino,
				dcpfs_ino_unpack(ino).kind == DCPFS_FILES_SUB ? DCPFS_DIR
									      : DCPFS_FILE,
				DCPFS_FIRST_ROW + i))
			break;
	}
	return 0;
}
