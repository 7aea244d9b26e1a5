/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/number.h"
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

/* Is one of the digit runs of @name the number @want? Leading zeros do not count. */
static bool has_number(const char *name, uint64_t want)
{
	while (*name) {
		size_t n = strspn(name, "0123456789");
		const char *p = name;
		uint64_t v;

		if (n && dcp_take_number(&p, NULL, DCP_ANY_DIGITS, &v) && v == want)
			return true;
		name += n ? n : 1;
	}
	return false;
}

int dcp_found_match(const struct dcp_found *found, size_t n, const char *name, size_t *at)
{
	size_t hits = 0, hit = 0;
	const char *end = name;
	uint64_t number;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(found[i].name, name) == 0) {
			*at = i;
			return 0;
		}
	}
	if (!dcp_take_number(&end, NULL, DCP_ANY_DIGITS, &number) || *end)
		return -ENOENT;
	for (size_t i = 0; i < n; i++) {
		if (has_number(found[i].name, number)) {
			hit = i;
			hits++;
		}
	}
	if (hits == 0)
		return -ENOENT;
	if (hits > 1)
		return -ENOTUNIQ;
	*at = hit;
	return 0;
}
