/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/model/order.h"
#include "core/store/version/version_int.h"

static int by_name(const void *a, const void *b)
{
	const struct dcp_found *x = a, *y = b;

	return dcp_order_compare(x->name, x->commit_ns, y->name, y->commit_ns);
}

static int rename_found(struct dcp_scan *scan, struct dcp_found *f)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;

	dcp_buf_printf(&name, "%s@%s", f->name, f->format->name);
	f->name = dcp_buf_error(&name) ? NULL : dcp_arena_strndup(&scan->arena, name.p, name.n);
	return f->name ? 0 : -ENOMEM;
}

/*
 * A loose file and a directory may be called alike: "step-5" and "step-5@torch-save". Names
 * that a mount has for itself, and "latest", which stands for the newest everywhere, are no
 * version's.
 */
int dcp_scan_part_names(struct dcp_scan *scan)
{
	static const char *const taken[] = { "latest", "tags", "by-key" };
	struct dcp_found *f = scan->found;
	int code = 0;

	for (size_t i = 0; code == 0 && i < scan->n; i++)
		for (size_t k = 0; code == 0 && k < DCP_LEN(taken); k++)
			if (strcmp(f[i].name, taken[k]) == 0)
				code = rename_found(scan, &f[i]);
	/* A new name may be another's, too: again, until all differ. */
	for (bool same = true; code == 0 && same;) {
		same = false;
		qsort(f, scan->n, sizeof(*f), by_name);
		for (size_t i = 0; code == 0 && i + 1 < scan->n; i++)
			if (strcmp(f[i].name, f[i + 1].name) == 0) {
				same = true;
				code = rename_found(scan, f[i].group ? &f[i] : &f[i + 1]);
			}
	}
	return code;
}
