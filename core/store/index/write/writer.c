/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer: what all that write an index need: errors, texts, one statement run.
 */
#include <errno.h>

#include "core/store/index/write/write_int.h"

int dcp_index_give_up(struct dcp_index_writer *w, int code, const char *why)
{
	if (!w->err.code)
		dcp_fail(&w->err, code, "index: %s", why);
	return w->err.code;
}

int dcp_index_no_memory(struct dcp_index_writer *w)
{
	return dcp_index_give_up(w, -ENOMEM, "out of memory");
}

int dcp_index_sql_failed(struct dcp_index_writer *w, int rc)
{
	if (!w->err.code)
		dcp_index_sql_fail(w->db, rc, w->temp ? w->temp : "index in memory", &w->err);
	return w->err.code;
}

void dcp_index_put_text(sqlite3_stmt *s, int i, const char *text)
{
	if (text)
		sqlite3_bind_text(s, i, text, -1, SQLITE_STATIC);
	else
		sqlite3_bind_null(s, i);
}

int dcp_index_run(struct dcp_index_writer *w, enum dcp_index_add which)
{
	int rc = sqlite3_step(w->stmt[which]);

	sqlite3_reset(w->stmt[which]);
	return rc == SQLITE_DONE ? 0 : dcp_index_sql_failed(w, rc);
}
