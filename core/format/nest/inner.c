/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/nest/inner.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/format.h"
#include "core/format/nest/relay.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"

enum { MAX_DEEP = 3 };

/* ---- files that are checkpoints by themselves ---- */

static int load_group(const struct dcp_load *in, const struct dcp_format *format,
		      const char *group, bool alone, struct dcp_err *err)
{
	dcp_auto_relay struct dcp_relay r = { .to = in->sink, .prefix = alone ? NULL : group };
	dcp_auto_dir struct dcp_dir part = { 0 };
	struct dcp_load sub;
	int rc = dcp_format_group(format, in->dir, group, &part);

	if (rc < 0)
		return dcp_fail(err, rc, "%.300s: %s", in->dir->path, dcp_err_noted(rc));
	sub = dcp_relay_load(&r, in, &part);
	return format->load(&sub, err);
}

static int load_groups(const struct dcp_load *in, const struct dcp_format *format,
		       struct dcp_err *err)
{
	struct dcp_intern groups = { 0 };
	char group[DCP_GROUP_MAX];
	uint32_t number;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];

		if (!e->is_dir && format->group(e->name, group))
			rc = dcp_intern_add(&groups, group, strlen(group) + 1, DCP_INTERN_NONE,
					    &number);
	}
	for (uint32_t i = 0; rc >= 0 && i < groups.n; i++)
		rc = load_group(in, format, dcp_intern_text(&groups, i), groups.n == 1, err);
	dcp_intern_finish(&groups);
	return rc < 0 ? rc : 0;
}

/* ---- directories ---- */

static int no_checkpoint(const struct dcp_dir *dir, const char *why, struct dcp_err *err)
{
	if (why && *why)
		return dcp_fail(err, -EINVAL, "%.200s: %.200s", dir->path, why);
	return dcp_fail(err, -EINVAL, "%.200s holds no checkpoint: %s%.100s%s%s", dir->path,
			dir->n ? "only " : "it is empty", dir->n ? dir->entries[0].name : "",
			dir->n > 1 ? " and more" : "",
			dir->n > 1 && dir->entries[0].is_dir
				? "; it is read as one version, so unpack what holds several"
				: "");
}

static int load_deep(const struct dcp_load *in, int deep, struct dcp_err *err);

static int load_below(const struct dcp_load *in, const char *name, const char *prefix, int deep,
		      struct dcp_err *err)
{
	char below[NAME_MAX + 2];
	dcp_auto_relay struct dcp_relay r = { .to = in->sink,
					      .below = below,
					      .prefix = prefix };
	dcp_auto_dir struct dcp_dir dir = { 0 };
	struct dcp_load sub;
	int rc = dcp_dir_open_at(in->dir, name, &dir, err);

	if (rc < 0)
		return rc;
	snprintf(below, sizeof(below), "%s/", name);
	sub = dcp_relay_load(&r, in, &dir);
	return load_deep(&sub, deep, err);
}

static int load_deep(const struct dcp_load *in, int deep, struct dcp_err *err)
{
	char why[256] = "";
	enum dcp_match match;
	const struct dcp_format *format =
		dcp_format_probe_in(in->formats, NULL, in->dir, &match, why, sizeof(why));

	if (format && match == DCP_MATCH_YES)
		return format->load(in, err);
	if (format && match == DCP_MATCH_MANY)
		return load_groups(in, format, err);
	if (!format && deep < MAX_DEEP && in->dir->n == 1 && in->dir->entries[0].is_dir)
		return load_below(in, in->dir->entries[0].name, NULL, deep + 1, err);
	return no_checkpoint(in->dir, why, err);
}

int dcp_inner_load(const struct dcp_load *in, struct dcp_err *err)
{
	return load_deep(in, 0, err);
}

int dcp_inner_load_at(const struct dcp_load *in, const char *name, const char *prefix,
		      struct dcp_err *err)
{
	return load_below(in, name, prefix, MAX_DEEP, err);
}
