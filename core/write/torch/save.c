/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file of torch.save, or one a rank, model_world_size_8_rank_3.pt: the state nested as the
 * source has it, tensors with the same bytes in one storage. torch.load(weights_only=True)
 * reads it, but for objects with dates, ranges, or numbers and arrays of numpy.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/write/formats.h"
#include "core/write/torch/torch.h"
#include "core/write/tree.h"
#include "core/write/value/value.h"

struct saving {
	const struct dcp_write_set *set;
	struct dcp_tree *tree;
	struct dcp_intern keys; /* of tensors, where objects have some in them */
	bool *inside;           /* of each tensor: an object has it */
	uint32_t rank;          /* whose file it is */
	size_t *storage;        /* its number; SIZE_MAX: none yet */
	size_t *tensors, n;     /* of the storages */
	size_t key;             /* of the object at hand */
	struct dcp_err *err;
};

static const char *refuses_object(const struct dcp_object *o)
{
	const char *why = dcp_torch_write_refuses_key(o->key);

	return why ? why : dcp_value_refuses(o, true);
}

static const char *asks(const struct dcp_object *o)
{
	return dcp_value_class(o) ? "torch.load(FILE) refuses the whole file because of it: "
				    "give weights_only=False, or leave it out with --skip"
				  : NULL;
}

/* ---- tensors ---- */

/* The tensor that shares its bytes. None where ranks cut tensors: equal ones may be cut
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

static int find(struct saving *s, const char *key, size_t *i)
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
	int rc = find(s, key, &i);

	if (rc == 0)
		s->inside[i] = true;
	return rc;
}

static int put_inside(void *ctx, struct dcp_pickler *p, const char *key)
{
	size_t i = 0;
	int rc = find(ctx, key, &i);

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

static int plan(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
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
	.asks = asks,
	.plan = plan,
};
