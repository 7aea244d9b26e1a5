/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file, or a Hugging Face directory: model.safetensors, or files of at most max_shard bytes of
 * tensors and model.safetensors.index.json. Tensors are in natural order of their keys, as in hf/ of a mount;
 * within a file those with larger elements come first where they would not be aligned otherwise.
 *
 * Of several ranks each has a file rank-00003-of-00008.safetensors, as dcpload --dump calls it, with the shapes of the
 * tensors that its arrays are cut from in __metadata__.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/base/sort.h"
#include "core/model/name.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/write/formats.h"

enum { ALIGN = 64, NAME = 96 };

struct entry {
	const struct dcp_write_tensor *t;
	const struct dcp_write_part *part;
	size_t number;
	uint64_t nbytes;
};

/* Which tensors are in which file: those of file i are entries first[i] to first[i + 1]. */
struct files {
	struct entry *e;
	size_t n, nfiles, *first;
	const char *stem; /* of their names */
	bool ranks;       /* file i is that of rank i */
	uint64_t total;
};

static const char *refuses(const struct dcp_write_tensor *t)
{
	if (!dcp_dtype_info(t->dtype)->safetensors)
		return "safetensors has no name for its dtype";
	return dcp_safetensors_can_name(t->key) ? NULL
						: "safetensors cannot have a key like that";
}

static int by_key(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return dcp_name_compare(x->t->key, y->t->key) ?: DCP_CMP(x->number, y->number);
}

static int by_size(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return DCP_CMP(y->t->itemsize, x->t->itemsize) ?: by_key(a, b);
}

static bool is_aligned(const struct entry *e, size_t n)
{
	uint64_t at = 0;

	for (size_t i = 0; i < n; at += e[i++].nbytes)
		if (e[i].t->itemsize && at % e[i].t->itemsize)
			return false;
	return true;
}

/* Cut the list into files of at most @size bytes; 0: one file. */
static void cut(struct files *f, uint64_t size)
{
	uint64_t in_file = 0;

	for (size_t i = 0; i < f->n; i++) {
		uint64_t n = f->e[i].nbytes;

		if (size && in_file && (in_file >= size || n > size - in_file)) {
			f->first[++f->nfiles] = i;
			in_file = 0;
		}
		in_file += n;
		f->total += n;
	}
	f->first[++f->nfiles] = f->n;
}

static void align(struct files *f)
{
	for (size_t i = 0; i < f->nfiles; i++) {
		struct entry *of = f->e + f->first[i];
		size_t nof = f->first[i + 1] - f->first[i];

		if (!is_aligned(of, nof))
			DCP_SORT(of, nof, by_size);
	}
}

static void add(struct files *f, const struct dcp_write_set *set, size_t i, size_t part)
{
	const struct dcp_write_tensor *t = &set->tensors[i];
	const struct dcp_write_part *p = &t->parts[part];

	f->e[f->n++] = (struct entry){ t, p, i, dcp_write_part_bytes(t, p) };
}

static int choose(struct files *f, const struct dcp_write_set *set, uint64_t size)
{
	size_t n = 0;

	f->ranks = set->arrays;
	for (size_t i = 0; i < set->ntensors; i++)
		n += set->tensors[i].nparts;
	f->e = calloc(n + 1, sizeof(*f->e));
	f->first = calloc(DCP_MAX(n, dcp_write_sets(set)) + 2, sizeof(*f->first));
	if (!f->e || !f->first)
		return -ENOMEM;
	for (uint32_t rank = 0; rank < dcp_write_sets(set); rank++) {
		for (size_t i = 0; i < set->ntensors; i++) {
			size_t part = dcp_write_part_of(set, i, rank);

			if (part != SIZE_MAX)
				add(f, set, i, part);
		}
		DCP_SORT(f->e + f->first[rank], f->n - f->first[rank], by_key);
		if (f->ranks)
			f->first[++f->nfiles] = f->n;
	}
	if (!f->ranks)
		cut(f, size);
	align(f);
	return 0;
}

static void file_name(const struct files *f, size_t i, char name[NAME])
{
	if (f->ranks)
		snprintf(name, NAME, "rank-%05zu-of-%05zu.safetensors", i, f->nfiles);
	else if (f->nfiles == 1)
		snprintf(name, NAME, "%s.safetensors", f->stem);
	else if (i == f->nfiles)
		snprintf(name, NAME, "%s.safetensors.index.json", f->stem);
	else
		snprintf(name, NAME, "%s-%05zu-of-%05zu.safetensors", f->stem, i + 1,
			 f->nfiles);
}

/* {"key": [16, 8]} as text: the tensors that arrays are cut from. */
static int put_shapes(const struct files *f, size_t i, struct dcp_jsonw *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_jsonw inner;

	dcp_jsonw_init(&inner, &text, false);
	dcp_jsonw_object(&inner);
	for (size_t k = f->first[i]; k < f->first[i + 1]; k++) {
		const struct dcp_write_tensor *t = f->e[k].t;
		const struct dcp_write_part *p = f->e[k].part;

		if (p->ndim == t->ndim &&
		    !memcmp(p->shape, t->shape, t->ndim * sizeof(*t->shape)))
			continue;
		dcp_jsonw_put_u64s(&inner, t->key, t->shape, t->ndim);
	}
	dcp_jsonw_end(&inner);
	if (dcp_jsonw_error(&inner) < 0)
		return dcp_jsonw_error(&inner);
	dcp_jsonw_put_str(w, "dcpfs.global_shapes", text.p);
	return 0;
}

static void put_number(struct dcp_jsonw *w, const char *key, size_t n)
{
	char text[24];

	snprintf(text, sizeof(text), "%zu", n);
	dcp_jsonw_put_str(w, key, text);
}

static int put_file(const struct files *f, size_t i, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf header = DCP_BUF_INIT;
	struct dcp_jsonw json;
	uint64_t at = 0;
	int rc = 0;

	dcp_buf_grow(&header, 8);
	dcp_jsonw_init(&json, &header, false);
	dcp_jsonw_object(&json);
	for (size_t k = f->first[i]; k < f->first[i + 1]; k++) {
		const struct entry *e = &f->e[k];

		dcp_safetensors_put(&json, e->t->key, e->t->dtype, e->part->ndim,
				    e->part->shape, at, at + e->nbytes);
		at += e->nbytes;
	}
	dcp_jsonw_put_object(&json, "__metadata__");
	dcp_jsonw_put_str(&json, "format", "pt");
	if (f->ranks) {
		put_number(&json, "dcpfs.rank", i);
		put_number(&json, "dcpfs.ranks", f->nfiles);
		rc = put_shapes(f, i, &json);
	}
	dcp_jsonw_end(&json);
	dcp_jsonw_end(&json);
	while (header.n % ALIGN && !header.failed)
		dcp_buf_str(&header, " ");
	if (rc < 0 || dcp_buf_error(&header))
		return rc < 0 ? rc : -ENOMEM;
	if (header.n - 8 > DCP_SAFETENSORS_MAX_HEADER)
		return -E2BIG;
	dcp_store_le64(header.p, header.n - 8);
	dcp_writer_bytes(w, header.p, header.n);
	for (size_t k = f->first[i]; k < f->first[i + 1]; k++)
		dcp_writer_part(w, f->e[k].number, (size_t)(f->e[k].part - f->e[k].t->parts));
	return 0;
}

static int put_index(const struct files *f, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_jsonw json;
	char name[NAME];

	dcp_jsonw_init(&json, &text, true);
	dcp_jsonw_object(&json);
	dcp_jsonw_put_object(&json, "metadata");
	dcp_jsonw_put_u64(&json, "total_size", f->total);
	dcp_jsonw_end(&json);
	dcp_jsonw_put_object(&json, "weight_map");
	for (size_t i = 0; i < f->nfiles; i++) {
		file_name(f, i, name);
		for (size_t k = f->first[i]; k < f->first[i + 1]; k++)
			dcp_jsonw_put_str(&json, f->e[k].t->key, name);
	}
	dcp_jsonw_end(&json);
	dcp_jsonw_end(&json);
	dcp_buf_str(&text, "\n");
	if (dcp_jsonw_error(&json) < 0)
		return dcp_jsonw_error(&json);
	file_name(f, f->nfiles, name);
	dcp_writer_file(w, name, true);
	dcp_writer_bytes(w, text.p, text.n);
	return 0;
}

static int put_all(const struct files *f, const struct dcp_write_opts *opts,
		   struct dcp_writer *w, struct dcp_err *err)
{
	char name[NAME];
	int rc = 0;

	if (!opts->name)
		dcp_writer_extras(w);
	for (size_t i = 0; rc == 0 && i < f->nfiles; i++) {
		file_name(f, i, name);
		dcp_writer_file(w, opts->name ? opts->name : name,
				(!f->ranks && f->nfiles == 1) ||
					(f->ranks && i + 1 == f->nfiles));
		rc = put_file(f, i, w);
	}
	if (rc == -E2BIG)
		return dcp_fail(
			err, rc,
			"the header of a safetensors file has at most %u bytes, and the "
			"keys of %s need more: give --max-shard-size",
			DCP_SAFETENSORS_MAX_HEADER, opts->name ? opts->name : name);
	if (rc == 0 && f->nfiles > 1 && !f->ranks)
		rc = put_index(f, w);
	return rc;
}

static int plan(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		struct dcp_writer *w, struct dcp_err *err)
{
	struct files f = { .stem = opts->stem ? opts->stem : "model" };
	int rc = choose(&f, set, opts->name ? 0 : opts->max_shard);

	if (rc == 0)
		rc = put_all(&f, opts, w, err);
	free(f.e);
	free(f.first);
	return rc;
}

static const char *const extensions[] = { ".safetensors", NULL };

const struct dcp_write_format dcp_write_safetensors = {
	.name = "safetensors",
	.what = "safetensors: one file, or a Hugging Face directory of several with an index",
	.extensions = extensions,
	.takes = DCP_WRITE_SHARDS | DCP_WRITE_EXTRAS | DCP_WRITE_ARRAYS,
	.refuses = refuses,
	.plan = plan,
};
