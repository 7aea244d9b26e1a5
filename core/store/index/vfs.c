/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SQLite opens files by path, once for every connection. An index is opened once, as a
 * descriptor or as bytes in memory, and every connection of the pool reads that: a file put in
 * its place later is another index, and no lock or journal is ever looked for.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/store/index/index_int.h"

struct source_file {
	sqlite3_file base;
	const struct dcp_source *src;
};

static int op_close(sqlite3_file *f)
{
	return SQLITE_OK;
}

static int op_read(sqlite3_file *f, void *buf, int n, sqlite3_int64 off)
{
	const struct dcp_source *src = ((struct source_file *)f)->src;
	uint64_t at = (uint64_t)off, left = off >= 0 && at < src->size ? src->size - at : 0;
	size_t got = (size_t)DCP_MIN(left, (uint64_t)n);

	int rc = got ? src->read(src, at, buf, got) : 0;

	if (rc < 0)
		return rc == -EBADMSG ? SQLITE_CORRUPT : SQLITE_IOERR_READ;
	if (got == (size_t)n)
		return SQLITE_OK;
	memset((char *)buf + got, 0, (size_t)n - got);
	return SQLITE_IOERR_SHORT_READ;
}

static int op_write(sqlite3_file *f, const void *buf, int n, sqlite3_int64 off)
{
	return SQLITE_READONLY;
}

static int op_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	return SQLITE_READONLY;
}

static int op_file_size(sqlite3_file *f, sqlite3_int64 *size)
{
	*size = (sqlite3_int64)((struct source_file *)f)->src->size;
	return SQLITE_OK;
}

static int op_lock(sqlite3_file *f, int level)
{
	return SQLITE_OK;
}

static int op_check_reserved(sqlite3_file *f, int *out)
{
	*out = 0;
	return SQLITE_OK;
}

static int op_control(sqlite3_file *f, int op, void *arg)
{
	return SQLITE_NOTFOUND;
}

static int op_sector(sqlite3_file *f)
{
	return 4096;
}

static int op_characteristics(sqlite3_file *f)
{
	return SQLITE_IOCAP_IMMUTABLE;
}

static const sqlite3_io_methods methods = {
	.iVersion = 1,
	.xClose = op_close,
	.xRead = op_read,
	.xWrite = op_write,
	.xTruncate = op_truncate,
	.xSync = op_lock,
	.xFileSize = op_file_size,
	.xLock = op_lock,
	.xUnlock = op_lock,
	.xCheckReservedLock = op_check_reserved,
	.xFileControl = op_control,
	.xSectorSize = op_sector,
	.xDeviceCharacteristics = op_characteristics,
};

static int op_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
	struct source_file *file = (struct source_file *)f;

	*file = (struct source_file){ 0 };
	if (!(flags & SQLITE_OPEN_MAIN_DB))
		return SQLITE_CANTOPEN;
	file->base.pMethods = &methods;
	file->src = vfs->pAppData;
	if (out)
		*out = SQLITE_OPEN_READONLY;
	return SQLITE_OK;
}

static int op_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
	return SQLITE_READONLY;
}

static int op_access(sqlite3_vfs *vfs, const char *name, int flags, int *out)
{
	*out = 0;
	return SQLITE_OK;
}

static int op_full_path(sqlite3_vfs *vfs, const char *name, int n, char *out)
{
	snprintf(out, (size_t)n, "%s", name);
	return SQLITE_OK;
}

int dcp_index_vfs_init(sqlite3_vfs *vfs, const char *name, const struct dcp_source *src)
{
	sqlite3_vfs *system = sqlite3_vfs_find(NULL);

	if (!system)
		return -ENOTSUP;
	*vfs = *system; /* its clock, its random numbers */
	vfs->szOsFile = sizeof(struct source_file);
	vfs->pNext = NULL;
	vfs->zName = name;
	vfs->pAppData = (void *)(uintptr_t)src;
	vfs->xOpen = op_open;
	vfs->xDelete = op_delete;
	vfs->xAccess = op_access;
	vfs->xFullPathname = op_full_path;
	return sqlite3_vfs_register(vfs, 0) == SQLITE_OK ? 0 : -ENOMEM;
}
