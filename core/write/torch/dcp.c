/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of torch.distributed.checkpoint: a file for each rank, __<rank>_0.distcp, whose
 * items are torch.save streams of a part of a tensor or of an object; and .metadata, last.
 *
 * .metadata uses the classes of torch 2.1, which later releases still have, and leaves out fields
 * that they do not need, so that torch 2.1 to 2.15 read it. Items begin at multiples of 64 bytes,
 * so elements do, too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/model/name.h"
#include "core/write/pickle.h"
#include "core/write/write.h"

#define METADATA "torch.distributed.checkpoint.metadata"
#define PROPERTIES "torch.distributed._shard.sharded_tensor.metadata"

enum { ALIGN = 64, FLUSH = 1 << 20 };

/* The position of an item in the file of its rank. */
struct place {
	uint64_t off, n;
};

struct part {
	size_t item, part;
};

struct saving {
	const struct dcp_write_set *set;
	struct dcp_writer *w;
	struct dcp_tree *tree;
	size_t *order,
		/* items with a key (a tensor, an object, or the first of a list), in natural order
		 * of keys */
		n;
	char **key;    /* by item */
	size_t *first; /* the first of a tensor's parts in places; objects follow */
	struct place *places;
	struct part *parts;      /* in the order of files */
	size_t *rank_first;      /* of each rank: its first in parts; and their number */
	uint32_t *memo;          /* of the keys, by item */
	uint32_t *file_memo;     /* of names of files, by rank, 0: none yet */
	uint32_t layout, memory; /* memos of what is the same in all tensors */
	struct dcp_pickler p;
};

static const char *refuses_object(const struct dcp_object *o)
{
	const char *why = dcp_torch_write_refuses_key(o->key);

	return why ? why : dcp_value_refuses(o, false);
}

static size_t count_items(const struct saving *s)
{
	return s->set->ntensors + s->set->nobjects;
}

static size_t nparts_of(const struct dcp_write_set *set, size_t item)
{
	return item < set->ntensors ? set->tensors[item].nparts : 1;
}

static int by_key(const void *a, const void *b, void *ctx)
{
	const size_t *x = a, *y = b;
	char *const *key = ctx;

	return dcp_name_compare(key[*x], key[*y]) ?: DCP_CMP(*x, *y);
}

/* ---- data files ---- */

static int put_tensor_item(struct saving *s, size_t tensor, size_t part)
{
	const struct dcp_write_tensor *t = &s->set->tensors[tensor];
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	struct dcp_zipper z;
	int rc;

	dcp_pickler_init(&s->p, &pickle, 2);
	dcp_torch_write_tensor(&s->p, t, &t->parts[part], 0);
	rc = dcp_pickler_end(&s->p);
	if (rc < 0)
		return rc;
	dcp_torch_write_begin(&z, s->w, &pickle);
	dcp_torch_write_storage(&z, 0, tensor, part);
	return dcp_torch_write_end(&z);
}

static int put_object(void *ctx, struct dcp_pickler *p, size_t item)
{
	const struct saving *s = ctx;

	return dcp_value_put(p, &s->set->objects[item - s->set->ntensors], NULL);
}

static int put_object_item(struct saving *s, size_t item)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	struct dcp_zipper z;
	int rc;

	dcp_pickler_init(&s->p, &pickle, 2);
	rc = dcp_tree_put_item(s->tree, &s->p, item, put_object, s);
	if (rc == 0)
		rc = dcp_pickler_end(&s->p);
	if (rc < 0)
		return rc;
	dcp_torch_write_begin(&z, s->w, &pickle);
	return dcp_torch_write_end(&z);
}

static int put_item(struct saving *s, size_t item, size_t part)
{
	const struct dcp_write_set *set = s->set;
	struct place *place = &s->places[s->first[item] + part];
	int rc;

	dcp_writer_fill(s->w, '\0', -s->w->at & (ALIGN - 1));
	place->off = s->w->at;
	rc = item < set->ntensors ? put_tensor_item(s, item, part) : put_object_item(s, item);
	place->n = s->w->at - place->off;
	return rc;
}

static void name_file(uint32_t rank, char name[32])
{
	snprintf(name, 32, "__%u_0.distcp", rank);
}

/* Order the parts as they are written: by rank, and objects first, all of them in rank 0. */
static void sort_parts(struct saving *s)
{
	const struct dcp_write_set *set = s->set;
	size_t *next = s->rank_first + 1;

	for (size_t i = 0; i < set->ntensors; i++)
		for (size_t k = 0; k < set->tensors[i].nparts; k++)
			next[set->tensors[i].parts[k].rank]++;
	for (size_t i = 0; i < s->n; i++)
		next[0] += s->order[i] >= set->ntensors;
	for (uint32_t r = 1; r < set->ranks; r++)
		next[r] += next[r - 1];
	/* next[r] is the end of the parts of rank r; rank_first[r] serves as the position of its
	 * next part */
	for (size_t pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < s->n; i++) {
			size_t item = s->order[i];

			if ((item < set->ntensors) != pass)
				continue;
			for (size_t k = 0; k < nparts_of(set, item); k++) {
				uint32_t rank = pass ? set->tensors[item].parts[k].rank : 0;

				s->parts[s->rank_first[rank]++] = (struct part){ item, k };
			}
		}
	for (uint32_t r = set->ranks; r-- > 1;)
		s->rank_first[r] = s->rank_first[r - 1];
	s->rank_first[0] = 0;
}

static int put_rank(struct saving *s, uint32_t rank)
{
	char name[32];
	int rc = 0;

	name_file(rank, name);
	dcp_writer_file(s->w, name, false);
	for (size_t i = s->rank_first[rank]; rc == 0 && i < s->rank_first[rank + 1]; i++)
		rc = put_item(s, s->parts[i].item, s->parts[i].part);
	return rc;
}

/* ---- .metadata ---- */

/* An instance of a dataclass whose @n fields follow as a dict. */
static void open_instance(struct saving *s, const char *module, const char *class, uint64_t n)
{
	dcp_pickler_put(&s->p, n ? "B O c (0 {*" : "O c (0", module, class, n);
}

/* Put f(x) the first time, and the same object later. @x NULL: 0. */
static void put_once(struct saving *s, uint32_t *memo, const char *module, const char *name,
		     const char *x)
{
	if (*memo) {
		dcp_pickler_get(&s->p, *memo);
		return;
	}
	if (x)
		dcp_pickler_put(&s->p, "R c (1 w", module, name, x);
	else
		dcp_pickler_put(&s->p, "R c (1 i", module, name, 0);
	*memo = dcp_pickler_last(&s->p);
}

/* (dtype, layout, requires_grad, memory format, pin_memory) */
static void put_properties(struct saving *s, const struct dcp_write_tensor *t)
{
	dcp_pickler_put(&s->p, "B O c (0 (5 c", PROPERTIES, "TensorProperties", "torch",
			dcp_dtype_info(t->dtype)->torch);
	put_once(s, &s->layout, "torch.serialization", "_get_layout", "torch.strided");
	dcp_pickler_bool(&s->p, false);
	put_once(s, &s->memory, PROPERTIES, "MEM_FORMAT_ENCODING", NULL);
	dcp_pickler_bool(&s->p, false);
}

static void put_tensor(struct saving *s, const struct dcp_write_tensor *t)
{
	open_instance(s, METADATA, "TensorStorageMetadata", 3);
	dcp_pickler_word(&s->p, "properties");
	put_properties(s, t);
	dcp_pickler_word(&s->p, "size");
	dcp_torch_write_size(&s->p, t->shape, t->ndim);
	dcp_pickler_put(&s->p, "w [*", "chunks", (uint64_t)t->nparts);
	for (size_t i = 0; i < t->nparts; i++) {
		open_instance(s, METADATA, "ChunkStorageMetadata", 2);
		dcp_pickler_word(&s->p, "offsets");
		dcp_torch_write_size(&s->p, t->parts[i].lo, t->ndim);
		dcp_pickler_word(&s->p, "sizes");
		dcp_torch_write_size(&s->p, t->parts[i].shape, t->ndim);
		if (s->p.out->n > FLUSH)
			dcp_pickler_flush(&s->p, s->w);
	}
}

static void put_state(struct saving *s)
{
	dcp_pickler_open(&s->p, DCP_PICKLE_DICT, s->n);
	for (size_t i = 0; i < s->n; i++) {
		size_t item = s->order[i];

		dcp_pickler_str(&s->p, s->key[item]);
		s->memo[item] = dcp_pickler_last(&s->p);
		if (item < s->set->ntensors)
			put_tensor(s, &s->set->tensors[item]);
		else
			open_instance(s, METADATA, "BytesStorageMetadata", 0);
	}
}

static void put_paths(struct saving *s)
{
	dcp_pickler_open(&s->p, DCP_PICKLE_DICT, s->n);
	for (size_t i = 0; i < s->n; i++) {
		dcp_pickler_get(&s->p, s->memo[s->order[i]]);
		dcp_tree_put_path(s->tree, &s->p, s->order[i]);
		if (s->p.out->n > FLUSH)
			dcp_pickler_flush(&s->p, s->w);
	}
}

static void put_file_name(struct saving *s, uint32_t rank)
{
	char name[32];

	if (s->file_memo[rank]) {
		dcp_pickler_get(&s->p, s->file_memo[rank]);
		return;
	}
	name_file(rank, name);
	dcp_pickler_str(&s->p, name);
	s->file_memo[rank] = dcp_pickler_last(&s->p);
}

static void put_storage(struct saving *s, size_t item, size_t part)
{
	const struct dcp_write_tensor *t =
		item < s->set->ntensors ? &s->set->tensors[item] : NULL;
	const struct place *place = &s->places[s->first[item] + part];

	open_instance(s, METADATA, "MetadataIndex", t ? 3 : 2);
	dcp_pickler_put(&s->p, "w g w", "fqn", s->memo[item], "index");
	if (t) {
		dcp_pickler_put(&s->p, "u w", (uint64_t)part, "offset");
		dcp_torch_write_size(&s->p, t->parts[part].lo, t->ndim);
	} else {
		dcp_pickler_none(&s->p);
	}
	open_instance(s, "torch.distributed.checkpoint.filesystem", "_StorageInfo", 3);
	dcp_pickler_word(&s->p, "relative_path");
	put_file_name(s, t ? t->parts[part].rank : 0);
	dcp_pickler_put(&s->p, "w u w u", "offset", place->off, "length", place->n);
	if (s->p.out->n > FLUSH)
		dcp_pickler_flush(&s->p, s->w);
}

static int put_metadata(struct saving *s, unsigned protocol)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	size_t nplaces = 0;
	int rc;

	for (size_t i = 0; i < s->n; i++)
		nplaces += nparts_of(s->set, s->order[i]);
	dcp_writer_file(s->w, ".metadata", true);
	dcp_pickler_init(&s->p, &pickle, protocol ? protocol : 4);
	open_instance(s, METADATA, "Metadata", 3);
	dcp_pickler_word(&s->p, "state_dict_metadata");
	put_state(s);
	dcp_pickler_word(&s->p, "planner_data");
	put_paths(s);
	dcp_pickler_put(&s->p, "w {*", "storage_data", (uint64_t)nplaces);
	for (size_t i = 0; i < s->n; i++)
		for (size_t k = 0; k < nparts_of(s->set, s->order[i]); k++)
			put_storage(s, s->order[i], k);
	rc = dcp_pickler_end(&s->p);
	dcp_pickler_flush(&s->p, s->w);
	return rc;
}

/* ---- all of it ---- */

static int find_keys(struct saving *s)
{
	for (size_t i = 0; i < count_items(s); i++) {
		if (dcp_tree_first(s->tree, i) != i)
			continue;
		s->order[s->n++] = i;
		s->key[i] = strndup(dcp_write_key(s->set, i), dcp_tree_key(s->tree, i));
		if (!s->key[i])
			return -ENOMEM;
	}
	qsort_r(s->order, s->n, sizeof(*s->order), by_key, s->key);
	return 0;
}

static int prepare_saving(struct saving *s)
{
	size_t n = count_items(s), nplaces = 0;
	int rc;

	s->order = calloc(n + 1, sizeof(*s->order));
	s->key = calloc(n + 1, sizeof(*s->key));
	s->first = calloc(n + 1, sizeof(*s->first));
	s->memo = calloc(n + 1, sizeof(*s->memo));
	s->file_memo = calloc(s->set->ranks + 1, sizeof(*s->file_memo));
	if (!s->order || !s->key || !s->first || !s->memo || !s->file_memo)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		s->first[i] = nplaces;
		nplaces += nparts_of(s->set, i);
	}
	s->places = calloc(nplaces + 1, sizeof(*s->places));
	s->parts = calloc(nplaces + 1, sizeof(*s->parts));
	s->rank_first = calloc(s->set->ranks + 2, sizeof(*s->rank_first));
	if (!s->places || !s->parts || !s->rank_first)
		return -ENOMEM;
	rc = dcp_tree_make(s->set, NULL, &s->tree);
	if (rc == 0)
		rc = find_keys(s);
	if (rc == 0)
		sort_parts(s);
	return rc;
}

static int plan_files(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	struct saving s = { .set = set, .w = w };
	int rc = prepare_saving(&s);

	for (uint32_t rank = 0; rc == 0 && rank < set->ranks; rank++)
		rc = put_rank(&s, rank);
	if (rc == 0)
		rc = put_metadata(&s, opts->protocol);
	dcp_tree_free(s.tree);
	for (size_t i = 0; s.key && i < count_items(&s); i++)
		free(s.key[i]);
	free(s.key);
	free(s.order);
	free(s.first);
	free(s.places);
	free(s.parts);
	free(s.rank_first);
	free(s.memo);
	free(s.file_memo);
	return rc;
}

const struct dcp_write_format dcp_write_torch_dcp = {
	.name = "torch-dcp",
	.what = "torch.distributed.checkpoint: .metadata and a file for each rank",
	.takes = DCP_WRITE_OBJECTS | DCP_WRITE_LAYOUT | DCP_WRITE_BOXES | DCP_WRITE_PROTOCOL,
	.refuses = dcp_torch_write_refuses,
	.refuses_object = refuses_object,
	.plan = plan_files,
};
