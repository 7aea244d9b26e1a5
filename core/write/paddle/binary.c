/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paddle's tensor streams. paddle-binary: one after the other in the order of their keys, as
 * save_combine writes a .pdiparams; a directory also gets the program that names them,
 * model.pdmodel, which has variables and no operations. One tensor alone is what
 * paddle.save(use_binary_format=True) writes. paddle-vars: a file for each, called like the
 * variable, as save_vars writes them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/model/name.h"
#include "core/parse/paddle/lodtensor.h"
#include "core/parse/paddle/protobuf.h"
#include "core/write/formats.h"

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

static const char *refuses(const struct dcp_write_tensor *t)
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

static const struct dcp_write_tensor **sort(const struct dcp_write_set *set)
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

static int plan(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		struct dcp_writer *w, struct dcp_err *err)
{
	const struct dcp_write_tensor **list = sort(set);
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

static const char *const extensions[] = { ".pdiparams", ".pdtensor", NULL };

const struct dcp_write_format dcp_write_paddle_binary = {
	.name = "paddle-binary",
	.what = "Paddle's tensor streams: one .pdiparams, or a directory with it and its "
		"program",
	.extensions = extensions,
	.refuses = refuses,
	.plan = plan,
};

const struct dcp_write_format dcp_write_paddle_vars = {
	.name = "paddle-vars",
	.what = "Paddle's tensor streams: a directory with a file for each variable",
	.takes = DCP_WRITE_RENAMES, /* without a program nothing says that it is a checkpoint */
	.refuses = refuses,
	.plan = plan_vars,
};
