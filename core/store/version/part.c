/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of a version by its name: keys that begin with it, or have it between dots.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/store/index/index.h"
#include "core/store/version/mapped.h"
#include "core/store/version/version_int.h"

/* The first components of keys, where no key has the prefix that was asked for. */
static int no_part(struct dcp_version *v, const char *asked, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf list = DCP_BUF_INIT;
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	char part[5][68];
	size_t n = 0, i;

	if (dcp_index_scan(v->index, DCP_ROW_TENSOR, 0, false, &scan) < 0)
		return dcp_err_say(err, -EIO);
	while (n < DCP_LEN(part) && dcp_index_scan_next(scan, &row) > 0) {
		snprintf(part[n], sizeof(part[n]), "\"%.*s.\"",
			 (int)DCP_MIN(strcspn(row.key, "."), 64), row.key);
		for (i = 0; strcmp(part[i], part[n]) != 0; i++)
			;
		if (i < n)
			continue;
		dcp_buf_printf(&list, "%s%s", n ? ", " : "", part[n]);
		n++;
	}
	return dcp_fail(err, -ENOKEY, "no key begins with \"%.100s.\"; they begin with %s%s",
			asked, list.p ? list.p : "nothing", n == DCP_LEN(part) ? ", ..." : "");
}

/* Does @name stand in the key, between dots or behind the last? */
static bool has_component(const char *key, const char *name)
{
	size_t n = strlen(name);

	while ((key = strchr(key, '.')))
		if (strncmp(++key, name, n) == 0 && (!key[n] || key[n] == '.'))
			return true;
	return false;
}

int dcp_version_part(struct dcp_version *v, const char *part, struct dcp_err *err)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	size_t n = strlen(part);
	struct dcp_row row;
	bool named = false;
	int rc = dcp_index_scan(v->index, DCP_ROW_TENSOR, 0, true, &scan);

	while (rc >= 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		if (strncmp(row.key, part, n) == 0 && row.key[n] == '.')
			return 1;
		named |= has_component(row.key, part);
	}
	if (rc < 0)
		return dcp_err_say(err, rc);
	return named ? 0 : no_part(v, part, err);
}
