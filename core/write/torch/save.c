/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of torch.save, or one for each rank, model_world_size_8_rank_3.pt: the state nested as in
 * the source, tensors with the same bytes in one storage. torch.load(weights_only=True) reads it,
 * unless objects hold dates, ranges, or numbers and arrays of numpy.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/text.h"
#include "core/model/dtype.h"
#include "core/write/pickle.h"
#include "core/write/write.h"

/* Types that have a storage class; all others are bytes, and the tensor says its dtype. */
static const char *const classes[DCP_DTYPE_COUNT] = {
	[DCP_DTYPE_F64] = "DoubleStorage",       [DCP_DTYPE_F32] = "FloatStorage",
	[DCP_DTYPE_F16] = "HalfStorage",         [DCP_DTYPE_BF16] = "BFloat16Storage",
	[DCP_DTYPE_I64] = "LongStorage",         [DCP_DTYPE_I32] = "IntStorage",
	[DCP_DTYPE_I16] = "ShortStorage",        [DCP_DTYPE_I8] = "CharStorage",
	[DCP_DTYPE_U8] = "ByteStorage",          [DCP_DTYPE_BOOL] = "BoolStorage",
	[DCP_DTYPE_C64] = "ComplexFloatStorage", [DCP_DTYPE_C128] = "ComplexDoubleStorage",
};

const char *dcp_torch_write_refuses_key(const char *key)
{
	size_t left = strlen(key), n;

	for (; left; key += n, left -= n) {
		n = dcp_utf8_len(key, left);
		if (n == 0 && dcp_utf8_surrogate(key, left))
			n = 3;
		if (n == 0 && left >= 2 && memcmp(key, "\xc0\x80", 2) == 0)
			n = 2;
		if (n == 0)
			return "its key is not text";
	}
	return NULL;
}

const char *dcp_torch_write_refuses(const struct dcp_write_tensor *t)
{
	const char *why = dcp_torch_write_refuses_key(t->key);

	if (why)
		return why;
	return dcp_dtype_info(t->dtype)->torch && t->dtype != DCP_DTYPE_OTHER
		       ? NULL
		       : "torch has no dtype for it";
}

void dcp_torch_write_size(struct dcp_pickler *p, const uint64_t *values, uint32_t n)
{
	dcp_pickler_put(p, "R c (1 v", "torch", "Size", n, values);
}

/* ("storage", class, "0", "cpu", elements) */
static void put_storage(struct dcp_pickler *p, const char *class, size_t storage, uint64_t n)
{
	char key[24];

	snprintf(key, sizeof(key), "%zu", storage);
	dcp_pickler_put(p, "P (5 w c s w u", "storage", class ? "torch" : "torch.storage",
			class ? class : "UntypedStorage", key, "cpu", n);
}

static void put_stride(struct dcp_pickler *p, const struct dcp_write_part *part)
{
	uint64_t stride[DCP_MAX_NDIM];

	for (uint32_t d = part->ndim, next = d; d-- > 0; next = d)
		stride[d] = next == part->ndim ? 1 : stride[next] * (part->shape[next] ?: 1);
	dcp_pickler_put(p, "v", part->ndim, stride);
}

void dcp_torch_write_tensor(struct dcp_pickler *p, const struct dcp_write_tensor *t,
			    const struct dcp_write_part *part, size_t storage)
{
	const char *class = classes[t->dtype];
	uint64_t nbytes = dcp_write_part_bytes(t, part);

	dcp_pickler_put(p, class ? "R c (6" : "R c (7", "torch._utils",
			class ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
	put_storage(p, class, storage, class ? nbytes / t->itemsize : nbytes);
	dcp_pickler_put(p, "i v", 0, part->ndim, part->shape);
	put_stride(p, part);
	dcp_pickler_put(p, "0 R c (0", "collections", "OrderedDict");
	if (!class)
		dcp_pickler_global(p, "torch", dcp_dtype_info(t->dtype)->torch);
}

void dcp_torch_write_begin(struct dcp_zipper *z, struct dcp_writer *w,
			   const struct dcp_buf *pickle)
{
	dcp_zipper_begin(z, w, DCP_ZIP_TORCH);
	dcp_zipper_bytes(z, "archive/data.pkl", pickle->p, pickle->n);
	dcp_zipper_bytes(z, "archive/byteorder", "little", 6);
}

void dcp_torch_write_storage(struct dcp_zipper *z, size_t storage, size_t tensor, size_t part)
{
	char name[48];

	snprintf(name, sizeof(name), "archive/data/%zu", storage);
	dcp_zipper_part(z, name, NULL, 0, tensor, part);
}

int dcp_torch_write_end(struct dcp_zipper *z)
{
	dcp_zipper_bytes(z, "archive/version", "3\n", 2);
	return dcp_zipper_end(z);
}

struct saving {
	const struct dcp_write_set *set;
	struct dcp_tree *tree;
	struct dcp_intern keys; /* of tensors, if objects contain some */
	bool *inside;           /* by tensor: it is inside an object */
	uint32_t rank;          /* rank that the file belongs to */
	size_t *storage;        /* by tensor: its storage; SIZE_MAX: none yet */
	size_t *tensors, n;     /* by storage: its tensor; number of storages */
	size_t key;             /* of the current object */
	struct dcp_err *err;
};

static const char *refuses_object(const struct dcp_object *o)
{
	const char *why = dcp_torch_write_refuses_key(o->key);

	return why ? why : dcp_value_refuses(o, true);
}

static const char *asks_option(const struct dcp_object *o)
{
	return dcp_value_class(o) ? "torch.load(FILE) refuses the whole file because of it: "
				    "give weights_only=False, or leave it out with --skip"
				  : NULL;
}

/* ---- tensors ---- */

/* The tensor that shares its bytes. None if ranks cut tensors, because equal tensors may be cut
 * differently. */
static size_t stored_with(const struct saving *s, size_t i)
{
	const struct dcp_write_tensor *t = &s->set->tensors[i];

	return t->same_as != DCP_WRITE_ALONE && !s->set->arrays &&
			       s->set->tensors[t->same_as].dtype == t->dtype
		       ? t->same_as
		       : i;
}

static int put_tensor(struct saving *s, struct dcp_pickler *p, size_t i)
{
	const struct dcp_write_tensor *t = &s->set->tensors[i];
	size_t with = stored_with(s, i), part = dcp_write_part_of(s->set, i, s->rank);

	if (part == SIZE_MAX)
		return dcp_fail(s->err, -EINVAL,
				"%s has the tensor %s in it, which rank %u does not have: "
				"leave out both",
				s->set->objects[s->key].key, t->key, s->rank);
	if (s->storage[with] == SIZE_MAX) {
		s->tensors[s->n] = with;
		s->storage[with] = s->n++;
	}
	dcp_torch_write_tensor(p, t, &t->parts[part], s->storage[with]);
	return 0;
}

static int find_tensor(struct saving *s, const char *key, size_t *i)
{
	uint32_t number = dcp_intern_find(&s->keys, key, strlen(key));

	if (number == DCP_INTERN_NONE)
		return dcp_fail(s->err, -EINVAL,
				"%s has the tensor %s in it, which is left out: leave out both",
				s->set->objects[s->key].key, key);
	*i = number;
	return 0;
}

static int mark_inside(void *ctx, struct dcp_pickler *p, const char *key)
{
	struct saving *s = ctx;
	size_t i = 0;
	int rc = find_tensor(s, key, &i);

	if (rc == 0)
		s->inside[i] = true;
	return rc;
}

static int put_inside(void *ctx, struct dcp_pickler *p, const char *key)
{
	size_t i = 0;
	int rc = find_tensor(ctx, key, &i);

	return rc < 0 ? rc : put_tensor(ctx, p, i);
}

/* Tensors that lie in objects are not keys of their own. */
static int find_inside(struct saving *s)
{
	const struct dcp_value_tensors mark = { mark_inside, s };
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < s->set->ntensors; i++) {
		rc = dcp_intern_str(&s->keys, s->set->tensors[i].key, NULL);
		if (rc == 0)
			return dcp_fail(s->err, -EINVAL, "there are two tensors %s",
					s->set->tensors[i].key);
	}
	for (s->key = 0; rc >= 0 && s->key < s->set->nobjects; s->key++)
		rc = dcp_value_tensors(&s->set->objects[s->key], &mark);
	return DCP_MIN(rc, 0);
}

/* ---- the file ---- */

static int put_item(void *ctx, struct dcp_pickler *p, size_t i)
{
	struct saving *s = ctx;
	const struct dcp_value_tensors inside = { put_inside, s };

	if (i < s->set->ntensors)
		return put_tensor(s, p, i);
	s->key = i - s->set->ntensors;
	return dcp_value_put(p, &s->set->objects[s->key], &inside);
}

static int put_file(struct saving *s, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	struct dcp_pickler p;
	struct dcp_zipper z;
	int rc;

	dcp_pickler_init(&p, &pickle, 2);
	rc = dcp_tree_put(s->tree, &p, 0, put_item, s);
	if (rc == 0)
		rc = dcp_pickler_end(&p);
	if (rc < 0)
		return rc;
	dcp_torch_write_begin(&z, w, &pickle);
	for (size_t i = 0; i < s->n; i++)
		dcp_torch_write_storage(&z, i, s->tensors[i],
					dcp_write_part_of(s->set, s->tensors[i], s->rank));
	return dcp_torch_write_end(&z);
}

static int put_rank(struct saving *s, const struct dcp_write_opts *opts, struct dcp_writer *w)
{
	size_t n = s->set->ntensors;
	dcp_auto_free bool *skip = calloc(n + 1, sizeof(*skip));
	char name[64] = "model.pt";
	int rc;

	if (!skip)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		skip[i] = s->inside[i] || dcp_write_part_of(s->set, i, s->rank) == SIZE_MAX;
		s->storage[i] = SIZE_MAX;
	}
	s->n = 0;
	rc = dcp_tree_make(s->set, skip, &s->tree);
	if (rc == 0 && dcp_tree_lost(s->tree))
		rc = dcp_fail(s->err, -EINVAL,
			      "%s is a key, and other keys lie below it: one nested value "
			      "cannot have "
			      "both; --skip one",
			      dcp_tree_lost(s->tree));
	if (s->set->arrays)
		snprintf(name, sizeof(name), "model_world_size_%u_rank_%u.pt", s->set->ranks,
			 s->rank);
	if (rc == 0) {
		dcp_writer_file(w, opts->name ? opts->name : name,
				s->rank + 1 == dcp_write_sets(s->set));
		rc = put_file(s, w);
	}
	dcp_tree_free(s->tree);
	s->tree = NULL;
	return rc;
}

static int plan_files(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	struct saving s = { .set = set, .err = err };
	int rc = -ENOMEM;

	s.inside = calloc(set->ntensors + 1, sizeof(*s.inside));
	s.storage = calloc(set->ntensors + 1, sizeof(*s.storage));
	s.tensors = calloc(set->ntensors + 1, sizeof(*s.tensors));
	if (s.inside && s.storage && s.tensors)
		rc = find_inside(&s);
	for (; rc == 0 && s.rank < dcp_write_sets(set); s.rank++)
		rc = put_rank(&s, opts, w);
	dcp_intern_finish(&s.keys);
	free(s.inside);
	free(s.storage);
	free(s.tensors);
	return rc;
}

static const char *const extensions[] = { ".pt", ".pth", ".bin", ".ckpt", NULL };

const struct dcp_write_format dcp_write_torch_save = {
	.name = "torch-save",
	.what = "one file of torch.save, or one a rank",
	.extensions = extensions,
	.takes = DCP_WRITE_OBJECTS | DCP_WRITE_ARRAYS,
	.refuses = dcp_torch_write_refuses,
	.refuses_object = refuses_object,
	.asks = asks_option,
	.plan = plan_files,
};
