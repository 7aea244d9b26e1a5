/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/format/deepspeed/emit.h"

static int by_number(const void *x, const void *y)
{
	const struct dcp_ds_name *a = x, *b = y;

	return DCP_CMP(a->kind, b->kind) ?: DCP_CMP(a->layer, b->layer) ?:
	       DCP_CMP(a->expert, b->expert) ?: DCP_CMP(a->mp, b->mp) ?:
	       DCP_CMP(a->dp, b->dp) ?: strcmp(a->name, b->name);
}

int dcp_ds_list_files(const struct dcp_dir *dir, struct dcp_ds_name **out, size_t *n)
{
	struct dcp_ds_name *f = calloc(dir->n + 1, sizeof(*f));

	*n = 0;
	if (!f)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && dcp_ds_name_parse(dir->entries[i].name, &f[*n]))
			++*n;
	DCP_SORT(f, *n, by_number);
	*out = f;
	return 0;
}

const struct dcp_ds_name *dcp_ds_files(const struct dcp_ds *ds, enum dcp_ds_kind kind,
				       size_t *n)
{
	size_t first = 0;

	while (first < ds->nfiles && ds->file[first].kind != kind)
		first++;
	*n = 0;
	while (first + *n < ds->nfiles && ds->file[first + *n].kind == kind)
		++*n;
	return ds->file + first;
}

const struct dcp_ds_part *dcp_ds_part_of(const struct dcp_ds *ds, uint64_t mp)
{
	size_t i;

	DCP_BISECT(i, 0, ds->nparts, ds->part[i].mp < mp);
	return i < ds->nparts && ds->part[i].mp == mp ? &ds->part[i] : NULL;
}

/* Does the file @mark of @above name @version? -1: there is no such file. */
static int is_named(const struct dcp_dir *above, const char *mark, const char *version)
{
	struct dcp_input in;
	char text[300];
	size_t n;

	if (!dcp_dir_find(above, mark) || dcp_dir_input(above, mark, &in, NULL) < 0)
		return -1;
	n = (size_t)DCP_MIN(in.src.size, sizeof(text) - 1);
	if (dcp_source_read(&in.src, 0, text, n) < 0)
		n = 0;
	dcp_input_close(&in);
	text[n] = '\0';
	text[strcspn(text, " \t\r\n")] = '\0';
	return strcmp(text, version) == 0;
}

bool dcp_ds_committed(const struct dcp_dir *above, const char *version)
{
	return !above || is_named(above, "latest", version) > 0 ||
	       is_named(above, "latest_universal", version) > 0;
}

const struct dcp_ds_rank *dcp_ds_rank_of(const struct dcp_ds_part *part, uint64_t dp)
{
	size_t i;

	DCP_BISECT(i, 0, part->nranks, part->rank[i].name->dp < dp);
	return i < part->nranks && part->rank[i].name->dp == dp ? &part->rank[i] : NULL;
}

enum { MAX_LOST = 100 }; /* files that are missing, by name */

/* The first model-parallel rank from @mp on that no file is of; false: all have one. */
static bool lacks_part(const struct dcp_ds *ds, uint32_t *mp)
{
	for (; *mp < ds->tp * ds->pp; ++*mp)
		if (!dcp_ds_part_of(ds, *mp))
			return true;
	return false;
}

bool dcp_ds_lacks(const struct dcp_ds *ds, char missing[DCP_DS_NAME_MAX])
{
	uint32_t mp = 0;

	if (lacks_part(ds, &mp) && ds->part->nmodels) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, missing);
		return true;
	}
	for (size_t i = 0; i < ds->nparts; i++) {
		const struct dcp_ds_part *p = &ds->part[i];

		for (uint32_t r = 0; p->first && r < p->world; r++)
			if (!dcp_ds_rank_of(p, r)) {
				dcp_ds_name_of_rank(p->first, r, p->mp, missing);
				return true;
			}
	}
	return false;
}

int dcp_ds_emit_lost(struct dcp_ds *ds)
{
	char name[DCP_DS_NAME_MAX];
	int rc = 0;

	for (uint32_t mp = 0, n = 0;
	     rc == 0 && n < MAX_LOST && ds->part->nmodels && lacks_part(ds, &mp); mp++, n++) {
		dcp_ds_name_of_rank(ds->part->model, 0, mp, name);
		rc = dcp_ds_emit_broken(
			ds, name,
			dcp_ds_text(
				ds,
				"%s is missing: nothing that only model-parallel rank %" PRIu32
				" of %" PRIu32 " holds can be shown",
				name, mp, ds->tp * ds->pp));
	}
	return rc;
}
