/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files/: what lies beside the tensors and is shown as it is: config.json, a tokenizer. A file
 * in a directory of the checkpoint has its path as its name, "/" as "%2F".
 */
#include <errno.h>
#include <string.h>

#include "core/model/name.h"
#include "core/parse/dir/dir.h"
#include "core/store/index/index.h"
#include "fs/dir_int.h"
#include "fs/versions.h"

/* The next sidecar whose row is at least @row, or NULL; *row becomes its. */
static const struct dcp_file_id *next(const struct dcpfs_version *ver, uint64_t *row)
{
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(dcpfs_index(ver), &n);

	for (; *row && *row <= n; ++*row)
		if (ids[*row - 1].shown)
			return &ids[*row - 1];
	return NULL;
}

int dcpfs_sidecars_lookup(const struct dcpfs_version *ver, const char *name, uint64_t *ino)
{
	const struct dcp_file_id *id;
	char shown[DCP_NAME_MAX + 1];

	for (uint64_t row = 1; (id = next(ver, &row)) != NULL; row++) {
		dcp_name_from_key(id->name, false, shown);
		if (strcmp(shown, name) == 0) {
			*ino = dcpfs_ino_pack(ver->slot, DCPFS_SIDECAR, row);
			return 0;
		}
	}
	return -ENOENT;
}

void dcpfs_sidecars_list(const struct dcpfs_listing *l, const struct dcpfs_version *ver,
			 uint64_t after)
{
	uint64_t row = after < DCPFS_FIRST_ROW ? 1 : after - DCPFS_FIRST_ROW + 1;
	const struct dcp_file_id *id;
	char shown[DCP_NAME_MAX + 1];

	for (; (id = next(ver, &row)) != NULL; row++) {
		dcp_name_from_key(id->name, false, shown);
		if (!dcpfs_tell(l, shown, dcpfs_ino_pack(ver->slot, DCPFS_SIDECAR, row),
				DCPFS_FILE, DCPFS_FIRST_ROW + row))
			return;
	}
}

int dcpfs_sidecar_attr(const struct dcpfs_version *ver, uint64_t row, struct stat *st)
{
	uint64_t at = row;
	const struct dcp_file_id *id = next(ver, &at);

	if (!id || at != row)
		return -ENOENT;
	st->st_size = (off_t)id->size;
	st->st_blocks = (blkcnt_t)((id->size + 511) / 512);
	st->st_mtim = dcp_file_time(id->mtime_ns);
	return 0;
}
