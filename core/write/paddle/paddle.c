/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file of paddle.save (.pdparams, .pdopt), as Paddle writes it:
 *
 *   a state dict        {key: array, ..., "StructuredToParameterName@@": {key: name}}
 *   anything else       nested as the source has it, each tensor as tuple((name, array))
 *
 * A state dict is a dict whose values are tensors and dicts without tensors. Names of
 * parameters are keys here. In a state dict of protocol 2 or 3 an array of 1 GiB or more stands
 * in parts.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/model/name.h"
#include "core/parse/paddle/paddle.h"
#include "core/write/pickle.h"
#include "core/write/write.h"

enum { PART = (1 << 30) - 1 }; /* largest array in bytes of protocols 2 and 3 */

#define NAMES "StructuredToParameterName@@"
#define BIG "UnpackBigParamInfor@@"

struct saving {
	const struct dcp_write_set *set;
	struct dcp_tree *tree;
	struct dcp_pickler p;
	struct dcp_ndarrays arrays;
	bool is_state;
	bool *big;      /* by tensor: it is written in parts */
	uint32_t *memo; /* of its key, in a state dict */
	struct dcp_err *err;
};

static const char *refuses_tensor(const struct dcp_write_tensor *t)
{
	/* An F8 would come back as I8. */
	if (!dcp_ndarray_can(t->dtype) || t->dtype == DCP_DTYPE_F8_E4M3 ||
	    t->dtype == DCP_DTYPE_F8_E5M2)
		return "paddle.load has no such type: give --dtype";
	return NULL;
}

static bool has_word(const struct dcp_object *o, const char *word)
{
	return memmem(o->json, o->json_len, word, strlen(word)) != NULL;
}

/* paddle.load looks into all iterable objects, and knows only dict, list, tuple and str. */
static const char *refuses_object(const struct dcp_object *o)
{
	if ((o->type && strncmp(o->type, "torch.", 6) == 0) ||
	    (has_word(o, "\"$class\"") && has_word(o, "\"torch.")))
		return "it is of a class of torch, which Paddle cannot unpickle";
	if (has_word(o, "\"$bytes\"") || has_word(o, "\"$set\"") || has_word(o, "\"range\""))
		return "paddle.load takes no bytes, sets and ranges";
	if (has_word(o, "\"$ndarray\""))
		return "paddle.load makes tensors of numpy arrays";
	return dcp_value_refuses(o, false);
}

/* ---- arrays in parts ---- */

static uint64_t part_of(const struct dcp_write_tensor *t)
{
	return t->itemsize ? PART / t->itemsize : PART;
}

static uint64_t parts_of(const struct dcp_write_tensor *t)
{
	uint64_t n = dcp_write_part_bytes(t, &t->parts[0]), one = part_of(t) * t->itemsize;

	return one ? n / one + (n % one != 0) : 0;
}

static void put_part_name(struct saving *s, const struct dcp_write_tensor *t, uint64_t i)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;

	if (dcp_buf_printf(&name, "%s@@.%llu", t->key, (unsigned long long)i) < 0)
		s->p.rc = -ENOMEM;
	else
		dcp_pickler_str(&s->p, name.p);
}

static int put_parts(struct saving *s, size_t tensor)
{
	const struct dcp_write_tensor *t = &s->set->tensors[tensor];
	uint64_t left = dcp_write_part_bytes(t, &t->parts[0]), n = parts_of(t), shape;
	struct dcp_ndarray_of of = {
		.dtype = t->dtype, .ndim = 1, .shape = &shape, .tensor = tensor
	};
	int rc = 0;

	for (uint64_t i = 0; rc == 0 && i < n; i++) {
		of.nbytes = DCP_MIN(left, part_of(t) * t->itemsize);
		shape = of.nbytes / t->itemsize;
		put_part_name(s, t, i);
		rc = dcp_ndarray_put(&s->arrays, &of, s->err);
		of.off += of.nbytes;
		left -= of.nbytes;
	}
	return rc;
}

/* {key: {"OriginShape": (...), "slices": [...]}} */
static void put_table_of_parts(struct saving *s, size_t nbig)
{
	struct dcp_pickler *p = &s->p;

	dcp_pickler_put(p, "s {*", BIG, (uint64_t)nbig);
	for (size_t i = 0; i < s->set->ntensors; i++) {
		const struct dcp_write_tensor *t = &s->set->tensors[i];

		if (!s->big[i])
			continue;
		dcp_pickler_put(p, "s {2 w v w [*", t->key, "OriginShape", t->ndim, t->shape,
				"slices", parts_of(t));
		for (uint64_t k = 0; k < parts_of(t); k++)
			put_part_name(s, t, k);
	}
}

/* ---- a state dict ---- */

static void put_names(struct saving *s)
{
	struct dcp_pickler *p = &s->p;

	dcp_pickler_put(p, "s {*", NAMES, (uint64_t)s->set->ntensors);
	for (size_t i = 0; i < s->set->ntensors; i++) {
		if (s->big[i])
			dcp_pickler_str(p, s->set->tensors[i].key);
		else
			dcp_pickler_get(p, s->memo[i]);
		dcp_pickler_str(p, s->set->tensors[i].key);
	}
}

static size_t count_big(const struct saving *s, uint64_t *parts)
{
	size_t n = 0;

	*parts = 0;
	for (size_t i = 0; i < s->set->ntensors; i++)
		if (s->big[i]) {
			n++;
			*parts += parts_of(&s->set->tensors[i]);
		}
	return n;
}

/* Are all tensors in the outermost dict, and nothing else? */
static bool is_state(const struct saving *s)
{
	for (size_t i = 0; i < s->set->ntensors; i++)
		if (dcp_tree_depth(s->tree, i) != 1)
			return false;
	for (size_t i = 0; i < s->set->nobjects; i++)
		if (dcp_tree_depth(s->tree, s->set->ntensors + i) == 1)
			return false;
	return true;
}

/* ---- the file ---- */

/* The name that Paddle's own gathering gives to a tensor in a nested dict. */
static const char *name_of(const struct dcp_write_tensor *t)
{
	return t->npath ? t->path[t->npath - 1] : t->key;
}

static int put_item(void *ctx, struct dcp_pickler *p, size_t i)
{
	struct saving *s = ctx;

	if (i >= s->set->ntensors)
		return dcp_value_put(p, &s->set->objects[i - s->set->ntensors], NULL);
	if (s->is_state) {
		s->memo[i] = dcp_pickler_last(p);
	} else {
		dcp_pickler_put(p, "R c (1 (2 s", "builtins", "tuple",
				name_of(&s->set->tensors[i]));
	}
	return dcp_ndarray_put_part(&s->arrays, i, 0, s->err);
}

static int put_all(struct saving *s, struct dcp_buf *pickle, struct dcp_writer *w)
{
	uint64_t parts;
	size_t nbig = count_big(s, &parts);
	int rc = dcp_tree_put(s->tree, &s->p, s->is_state ? 1 + parts + (nbig > 0) : 0,
			      put_item, s);

	if (rc == 0 && s->is_state)
		put_names(s);
	for (size_t i = 0; rc == 0 && nbig && i < s->set->ntensors; i++)
		if (s->big[i])
			rc = put_parts(s, i);
	if (rc == 0 && nbig)
		put_table_of_parts(s, nbig);
	if (rc == 0)
		rc = dcp_pickler_end(&s->p);
	if (rc == 0)
		dcp_writer_bytes(w, pickle->p, pickle->n);
	return rc;
}

/* A key that exists twice, or that is also the name of a dict, has no place. */
static int check_places(const struct saving *s)
{
	for (size_t i = 0; i < s->set->ntensors + s->set->nobjects; i++) {
		const char *key = i < s->set->ntensors
					  ? s->set->tensors[i].key
					  : s->set->objects[i - s->set->ntensors].key;

		if (dcp_tree_depth(s->tree, i) == 0)
			return dcp_fail(s->err, -EINVAL,
					"two entries are called %.200s; a dict can have one",
					key);
	}
	return 0;
}

/* Make the tree, twice, because only a state dict has arrays in parts. */
static int make_tree(struct saving *s)
{
	int rc = dcp_tree_make(s->set, NULL, &s->tree);
	bool any = false;

	if (rc == 0)
		rc = check_places(s);
	if (rc < 0)
		return rc;
	s->is_state = is_state(s);
	if (!s->is_state || s->p.protocol >= 4)
		return 0;
	for (size_t i = 0; i < s->set->ntensors; i++) {
		s->big[i] = parts_of(&s->set->tensors[i]) > 1;
		any |= s->big[i];
	}
	if (!any)
		return 0;
	dcp_tree_free(s->tree);
	s->tree = NULL;
	return dcp_tree_make(s->set, s->big, &s->tree);
}

static int plan_files(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	struct saving s = { .set = set, .err = err };
	int rc = -ENOMEM;

	if (opts->protocol && (opts->protocol < 2 || opts->protocol > 4))
		return dcp_fail(err, -EINVAL, "protocol %u: paddle.save has 2, 3 and 4",
				opts->protocol);
	dcp_pickler_init(&s.p, &pickle, opts->protocol ? opts->protocol : 4);
	s.arrays.p = &s.p;
	s.arrays.w = w;
	s.big = calloc(set->ntensors + 1, sizeof(*s.big));
	s.memo = calloc(set->ntensors + 1, sizeof(*s.memo));
	if (s.big && s.memo)
		rc = make_tree(&s);
	if (rc == 0) {
		dcp_writer_file(w, opts->name ? opts->name : "model.pdparams", true);
		rc = put_all(&s, &pickle, w);
	}
	if (rc == -ENOTSUP)
		rc = dcp_fail(
			err, -EINVAL,
			"protocol 2 cannot be written by several ranks together: give 3 or 4");
	dcp_tree_free(s.tree);
	free(s.big);
	free(s.memo);
	return rc;
}

static const char *const extensions[] = { ".pdparams", ".pdopt", ".pd", ".pdz", NULL };

const struct dcp_write_format dcp_write_paddle = {
	.name = "paddle",
	.what = "one file of paddle.save",
	.extensions = extensions,
	.takes = DCP_WRITE_PROTOCOL | DCP_WRITE_OBJECTS,
	.refuses = refuses_tensor,
	.refuses_object = refuses_object,
	.plan = plan_files,
};

/*
 * Paddle's tensor streams. paddle-binary: one after the other in the order of their keys, as
 * save_combine writes a .pdiparams; a directory also gets the program that names them,
 * model.pdmodel, which has variables and no operations. One tensor alone is what
 * paddle.save(use_binary_format=True) writes. paddle-vars: a file for each tensor, named like the
 * variable, as save_vars writes them.
 */

/* Fields of framework.proto. */
enum {
	PROGRAM_BLOCKS = 1,
	PROGRAM_VERSION = 4,
	BLOCK_INDEX = 1,
	BLOCK_PARENT = 2,
	BLOCK_VARS = 3
};
enum { VAR_NAME = 1, VAR_TYPE = 2, VAR_PERSISTABLE = 3, VAR_IS_PARAMETER = 5 };
enum { TYPE_TYPE = 1, TYPE_TENSOR = 3, TENSOR_DESC = 1, TENSOR_LEVELS = 2, DENSE_TENSOR = 7 };

static const char *refuse_binary(const struct dcp_write_tensor *t)
{
	dcp_auto_buf struct dcp_buf desc = DCP_BUF_INIT;

	if (dcp_lodtensor_put_desc(&desc, t->dtype, 0, NULL) == -ENOTSUP)
		return "Paddle's tensor streams have no number for its dtype";
	return *t->key && dcp_json_can_say(t->key) && !strstr(t->key, "\xc0\x80")
		       ? NULL
		       : "no variable of Paddle can be called like that";
}

static int by_key(const void *a, const void *b)
{
	const struct dcp_write_tensor *const *x = a, *const *y = b;

	return strcmp((*x)->key, (*y)->key);
}

static const struct dcp_write_tensor **sort_tensors(const struct dcp_write_set *set)
{
	const struct dcp_write_tensor **list = calloc(set->ntensors + 1, sizeof(*list));

	for (size_t i = 0; list && i < set->ntensors; i++)
		list[i] = &set->tensors[i];
	if (list)
		qsort(list, set->ntensors, sizeof(*list), by_key);
	return list;
}

static int put_stream(const struct dcp_write_tensor *t, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf head = DCP_BUF_INIT;
	int rc = dcp_lodtensor_put(&head, t->dtype, t->ndim, t->shape);

	if (rc < 0)
		return rc;
	dcp_writer_bytes(w, head.p, head.n);
	dcp_writer_part(w, (size_t)(t - w->set->tensors), 0);
	return 0;
}

/* ---- the program ---- */

static int put_var(struct dcp_buf *block, const struct dcp_write_tensor *t)
{
	dcp_auto_buf struct dcp_buf desc = DCP_BUF_INIT, tensor = DCP_BUF_INIT,
				    type = DCP_BUF_INIT, var = DCP_BUF_INIT;
	int rc = dcp_lodtensor_put_desc(&desc, t->dtype, t->ndim, t->shape);

	if (rc < 0)
		return rc;
	dcp_pb_put(&tensor, TENSOR_DESC, desc.p, desc.n);
	dcp_pb_put_varint(&tensor, TENSOR_LEVELS, 0);
	dcp_pb_put_varint(&type, TYPE_TYPE, DENSE_TENSOR);
	dcp_pb_put(&type, TYPE_TENSOR, tensor.p, tensor.n);
	dcp_pb_put(&var, VAR_NAME, t->key, strlen(t->key));
	dcp_pb_put(&var, VAR_TYPE, type.p, type.n);
	dcp_pb_put_varint(&var, VAR_PERSISTABLE, 1);
	dcp_pb_put_varint(&var, VAR_IS_PARAMETER, 1);
	dcp_pb_put(block, BLOCK_VARS, var.p, var.n);
	return dcp_buf_error(&tensor) | dcp_buf_error(&type) | dcp_buf_error(&var) |
	       dcp_buf_error(block);
}

static int put_program(const struct dcp_write_tensor *const *list, size_t n,
		       struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf block = DCP_BUF_INIT, program = DCP_BUF_INIT;
	const char version[] = { 1 << 3, 0 };
	int rc = 0;

	dcp_pb_put_varint(&block, BLOCK_INDEX, 0);
	dcp_pb_put_varint(&block, BLOCK_PARENT, UINT64_MAX); /* -1: none */
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = put_var(&block, list[i]);
	if (rc < 0)
		return rc;
	dcp_pb_put(&program, PROGRAM_BLOCKS, block.p, block.n);
	dcp_pb_put(&program, PROGRAM_VERSION, version, sizeof(version));
	if (dcp_buf_error(&block) || dcp_buf_error(&program))
		return -ENOMEM;
	dcp_writer_file(w, "model.pdmodel", false);
	dcp_writer_bytes(w, program.p, program.n);
	return 0;
}

/* ---- both rows ---- */

static int plan_binary(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		       struct dcp_writer *w, struct dcp_err *err)
{
	const struct dcp_write_tensor **list = sort_tensors(set);
	int rc = list ? 0 : -ENOMEM;

	if (rc == 0 && !opts->name)
		rc = put_program(list, set->ntensors, w);
	dcp_writer_file(w, opts->name ? opts->name : "model.pdiparams", true);
	for (size_t i = 0; rc == 0 && i < set->ntensors; i++)
		rc = put_stream(list[i], w);
	free(list);
	return rc;
}

static int plan_vars(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		     struct dcp_writer *w, struct dcp_err *err)
{
	char name[DCP_NAME_MAX + 1];
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < set->ntensors; i++) {
		dcp_name_from_key(set->tensors[i].key, false, name);
		dcp_writer_file(w, name, false);
		rc = put_stream(&set->tensors[i], w);
	}
	return rc;
}

static const char *const binary_extensions[] = { ".pdiparams", ".pdtensor", NULL };

const struct dcp_write_format dcp_write_paddle_binary = {
	.name = "paddle-binary",
	.what = "Paddle's tensor streams: one .pdiparams, or a directory with it and its "
		"program",
	.extensions = binary_extensions,
	.refuses = refuse_binary,
	.plan = plan_binary,
};

const struct dcp_write_format dcp_write_paddle_vars = {
	.name = "paddle-vars",
	.what = "Paddle's tensor streams: a directory with a file for each variable",
	.takes = DCP_WRITE_RENAMES, /* only the program shows that it is a checkpoint */
	.refuses = refuse_binary,
	.plan = plan_vars,
};
