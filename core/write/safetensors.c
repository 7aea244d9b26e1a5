/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file, or a Hugging Face directory: model.safetensors, or files of at most max_shard bytes of
 * tensors and model.safetensors.index.json. Tensors are in natural order of their keys, as in hf/
 * of a mount; within a file those with larger elements come first where they would not be aligned
 * otherwise. Every file has the __metadata__ of the source's files.
 *
 * Each of several ranks has a file, rank-00003-of-00008.safetensors, as dcpload --dump names it.
 * Its __metadata__ has the shapes of the tensors from which its arrays are cut.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/write/write.h"

enum { ALIGN = 64 };

/* The tensors of each file: file i has items first[i] to first[i + 1], by their numbers in the
 * set. */
struct files {
	const struct dcp_write_set *set;
	struct dcp_safetensors_item *item;
	size_t nfiles, *first;
	const char *stem; /* of their names */
	uint64_t total;
};

static const char *refuses_tensor(const struct dcp_write_tensor *t)
{
	if (!dcp_dtype_info(t->dtype)->safetensors)
		return "safetensors has no name for its dtype";
	return dcp_safetensors_can_name(t->key) ? NULL
						: "safetensors cannot have a key like that";
}

static const struct dcp_write_tensor *tensor_of(const struct files *f, size_t k)
{
	return &f->set->tensors[f->item[k].number];
}

/* The part of item @k in file @i: with several ranks each rank has its own. */
static const struct dcp_write_part *part_of(const struct files *f, size_t k, size_t i)
{
	size_t number = dcp_write_part_of(f->set, f->item[k].number, (uint32_t)i);

	return &tensor_of(f, k)->parts[number];
}

/* The items of a rank, or of all files, from item @n on: returns how many there are then. */
static size_t add_items(struct files *f, uint32_t rank, size_t n)
{
	for (size_t i = 0; i < f->set->ntensors; i++) {
		const struct dcp_write_tensor *t = &f->set->tensors[i];
		size_t of = dcp_write_part_of(f->set, i, rank);

		if (of == SIZE_MAX)
			continue;
		f->item[n] = (struct dcp_safetensors_item){ .key = t->key,
							    .number = i,
							    .nbytes = dcp_write_part_bytes(
								    t, &t->parts[of]),
							    .itemsize = t->itemsize };
		f->total += f->item[n++].nbytes;
	}
	return n;
}

static int choose_files(struct files *f, uint64_t size)
{
	const struct dcp_write_set *set = f->set;
	size_t n = 0;

	for (size_t i = 0; i < set->ntensors; i++)
		n += set->tensors[i].nparts;
	f->item = calloc(n + 1, sizeof(*f->item));
	f->first = calloc(DCP_MAX(n, dcp_write_sets(set)) + 2, sizeof(*f->first));
	if (!f->item || !f->first)
		return -ENOMEM;
	if (!set->arrays) {
		f->nfiles =
			dcp_safetensors_arrange(f->item, add_items(f, 0, 0), size, f->first);
		return 0;
	}
	for (n = 0; f->nfiles < set->ranks; n = f->first[++f->nfiles]) {
		size_t end = add_items(f, (uint32_t)f->nfiles, n), one[2];

		dcp_safetensors_arrange(f->item + n, end - n, 0, one);
		f->first[f->nfiles + 1] = end;
	}
	return 0;
}

static void name_file(const struct files *f, size_t i, char name[DCP_SAFETENSORS_NAME])
{
	if (f->set->arrays)
		snprintf(name, DCP_SAFETENSORS_NAME, "rank-%05zu-of-%05zu.safetensors", i,
			 f->nfiles);
	else
		dcp_safetensors_file_name(name, f->stem, i, f->nfiles);
}

/* Write which rank file @i is, and the shapes of the tensors that arrays are cut from. */
static int put_shapes(const struct files *f, size_t i, struct dcp_jsonw *w)
{
	struct dcp_safetensors_shapes shapes;

	dcp_safetensors_begin_shapes(&shapes);
	for (size_t k = f->first[i]; k < f->first[i + 1]; k++) {
		const struct dcp_write_tensor *t = tensor_of(f, k);
		const struct dcp_write_part *p = part_of(f, k, i);

		if (p->ndim == t->ndim &&
		    !memcmp(p->shape, t->shape, t->ndim * sizeof(*t->shape)))
			continue;
		dcp_jsonw_put_u64s(&shapes.w, t->key, t->shape, t->ndim);
	}
	return dcp_safetensors_put_shapes(&shapes, w, i, f->nfiles);
}

/* Begin the metadata that files of the source hold beside the tensors of file @i. */
static int begin_metadata(const struct files *f, size_t i, struct dcp_jsonw *json)
{
	size_t n = f->first[i + 1] - f->first[i], *tensors = calloc(n + 1, sizeof(*tensors));
	const char *object = NULL;
	int rc = tensors ? 0 : -ENOMEM;

	for (size_t k = 0; tensors && k < n; k++)
		tensors[k] = f->item[f->first[i] + k].number;
	if (rc == 0 && f->set->said)
		rc = f->set->said(f->set->ctx, tensors, n, &object);
	free(tensors);
	dcp_jsonw_key(json, "__metadata__");
	dcp_safetensors_begin_meta(json, NULL, rc < 0 ? NULL : object);
	return rc;
}

static int put_file(const struct files *f, size_t i, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf header = DCP_BUF_INIT;
	struct dcp_jsonw json;
	uint64_t at = 0;
	int rc;

	dcp_safetensors_begin(&json, &header);
	for (size_t k = f->first[i]; k < f->first[i + 1]; k++) {
		const struct dcp_write_part *p = part_of(f, k, i);
		uint64_t end = at + f->item[k].nbytes;

		dcp_safetensors_put(&json, f->item[k].key, tensor_of(f, k)->dtype, p->ndim,
				    p->shape, at, end);
		at = end;
	}
	rc = begin_metadata(f, i, &json);
	if (rc == 0 && f->set->arrays)
		rc = put_shapes(f, i, &json);
	dcp_jsonw_end(&json);
	if (rc == 0)
		rc = dcp_safetensors_end(&json, 0, ALIGN);
	if (rc < 0)
		return rc;
	dcp_writer_bytes(w, header.p, header.n);
	for (size_t k = f->first[i]; k < f->first[i + 1]; k++)
		dcp_writer_part(w, f->item[k].number,
				dcp_write_part_of(f->set, f->item[k].number, (uint32_t)i));
	return 0;
}

static int put_index(const struct files *f, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_jsonw json;
	char name[DCP_SAFETENSORS_NAME];
	int rc;

	dcp_safetensors_begin_index(&json, &text, f->total);
	for (size_t i = 0; i < f->nfiles; i++) {
		name_file(f, i, name);
		for (size_t k = f->first[i]; k < f->first[i + 1]; k++)
			dcp_jsonw_put_str(&json, f->item[k].key, name);
	}
	rc = dcp_safetensors_end_index(&json);
	if (rc < 0)
		return rc;
	name_file(f, f->nfiles, name);
	dcp_writer_file(w, name, true);
	dcp_writer_bytes(w, text.p, text.n);
	return 0;
}

static int put_all(const struct files *f, const struct dcp_write_opts *opts,
		   struct dcp_writer *w, struct dcp_err *err)
{
	char name[DCP_SAFETENSORS_NAME];
	int rc = 0;

	if (!opts->name)
		dcp_writer_extras(w);
	for (size_t i = 0; rc == 0 && i < f->nfiles; i++) {
		name_file(f, i, name);
		dcp_writer_file(w, opts->name ? opts->name : name,
				(!f->set->arrays && f->nfiles == 1) ||
					(f->set->arrays && i + 1 == f->nfiles));
		rc = put_file(f, i, w);
	}
	if (rc == -E2BIG)
		return dcp_fail(
			err, rc,
			"the header of a safetensors file has at most %u bytes, and the "
			"keys of %s need more: give --max-shard-size",
			DCP_SAFETENSORS_MAX_HEADER, opts->name ? opts->name : name);
	if (rc == 0 && f->nfiles > 1 && !f->set->arrays)
		rc = put_index(f, w);
	return rc;
}

static int plan_files(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	struct files f = { .set = set, .stem = opts->stem ? opts->stem : "model" };
	int rc = choose_files(&f, opts->name ? 0 : opts->max_shard);

	if (rc == 0)
		rc = put_all(&f, opts, w, err);
	free(f.item);
	free(f.first);
	return rc;
}

static const char *const extensions[] = { ".safetensors", NULL };

const struct dcp_write_format dcp_write_safetensors = {
	.name = "safetensors",
	.what = "safetensors: one file, or a Hugging Face directory of several with an index",
	.extensions = extensions,
	.takes = DCP_WRITE_SHARDS | DCP_WRITE_EXTRAS | DCP_WRITE_ARRAYS | DCP_WRITE_METADATA,
	.refuses = refuses_tensor,
	.plan = plan_files,
};
