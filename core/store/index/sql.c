/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sql: what SQLite's errors mean here.
 */
#include <errno.h>

#include "core/store/index/index_int.h"

static int code_of_errno(int e)
{
	switch (e) {
	case 0:
		return -EIO;
	case EDQUOT: /* to a person these are one thing: it does not fit */
	case EFBIG:
		return -ENOSPC;
	default:
		return -e;
	}
}

/* What the file's last system call said; the connection's own note may be overwritten. */
static int last_errno(sqlite3 *db)
{
	int e = 0;

	if (db && sqlite3_file_control(db, "main", SQLITE_FCNTL_LAST_ERRNO, &e) == SQLITE_OK &&
	    e)
		return e;
	return db ? sqlite3_system_errno(db) : 0;
}

int dcp_index_sql_fail(sqlite3 *db, int rc, const char *what, struct dcp_err *err)
{
	int code;

	switch (rc & 0xff) {
	case SQLITE_FULL:
		code = -ENOSPC;
		break;
	case SQLITE_NOMEM:
		code = -ENOMEM;
		break;
	case SQLITE_READONLY:
		code = -EROFS;
		break;
	case SQLITE_IOERR:
	case SQLITE_CANTOPEN:
		code = code_of_errno(last_errno(db));
		break;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		code = -EBUSY;
		break;
	case SQLITE_CORRUPT:
		return dcp_fail(err, -EBADMSG,
				"%s: damaged since it was written; it is rebuilt when it is "
				"opened next",
				what);
	default:
		code = -EBADMSG;
		break;
	}
	return dcp_fail(err, code, "%s: %s", what,
			db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
}
