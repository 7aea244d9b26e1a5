/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/torch.h"

#include <string.h>

#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t.h"
#include "tests/unit/t/parse/zip.h"

static void put_op(struct dcp_buf *b, char c)
{
	dcp_buf_add(b, &c, 1);
}

static void put_num(struct dcp_buf *b, unsigned bytes, uint64_t v)
{
	dcp_buf_add(b, &v, bytes);
}

void t_pk_start(struct dcp_buf *b)
{
	dcp_buf_add(b, "\x80\x02", 2);
}

void t_pk_stop(struct dcp_buf *b)
{
	put_op(b, '.');
}

void t_pk_none(struct dcp_buf *b)
{
	put_op(b, 'N');
}

void t_pk_bool(struct dcp_buf *b, bool v)
{
	put_op(b, v ? '\x88' : '\x89');
}

void t_pk_int(struct dcp_buf *b, int64_t v)
{
	if (v >= 0 && v < 256) {
		put_op(b, 'K');
		put_num(b, 1, (uint64_t)v);
	} else if (v >= INT32_MIN && v <= INT32_MAX) {
		put_op(b, 'J');
		put_num(b, 4, (uint64_t)v);
	} else {
		t_pk_long(b, &v, 8);
	}
}

void t_pk_float(struct dcp_buf *b, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, 8);
	put_op(b, 'G');
	put_num(b, 8, __builtin_bswap64(bits));
}

void t_pk_long(struct dcp_buf *b, const void *le, uint8_t n)
{
	put_op(b, '\x8a');
	put_num(b, 1, n);
	dcp_buf_add(b, le, n);
}

void t_pk_str(struct dcp_buf *b, const char *s)
{
	t_pk_str_n(b, s, strlen(s));
}

void t_pk_str_n(struct dcp_buf *b, const char *s, size_t n)
{
	put_op(b, 'X');
	put_num(b, 4, n);
	dcp_buf_add(b, s, n);
}

void t_pk_bytes(struct dcp_buf *b, const void *p, size_t n)
{
	put_op(b, 'B');
	put_num(b, 4, n);
	dcp_buf_add(b, p, n);
}

void t_pk_global(struct dcp_buf *b, const char *module, const char *name)
{
	dcp_buf_printf(b, "c%s\n%s\n", module, name);
}

void t_pk_list(struct dcp_buf *b)
{
	put_op(b, ']');
}

void t_pk_dict(struct dcp_buf *b)
{
	put_op(b, '}');
}

void t_pk_set(struct dcp_buf *b)
{
	put_op(b, '\x8f');
}

void t_pk_mark(struct dcp_buf *b)
{
	put_op(b, '(');
}

void t_pk_get(struct dcp_buf *b, uint8_t memo)
{
	put_op(b, 'h');
	put_num(b, 1, memo);
}

void t_pk_tuple(struct dcp_buf *b)
{
	put_op(b, 't');
}

void t_pk_appends(struct dcp_buf *b)
{
	put_op(b, 'e');
}

void t_pk_setitems(struct dcp_buf *b)
{
	put_op(b, 'u');
}

void t_pk_additems(struct dcp_buf *b)
{
	put_op(b, '\x90');
}

void t_pk_reduce(struct dcp_buf *b)
{
	put_op(b, 'R');
}

void t_pk_newobj(struct dcp_buf *b)
{
	put_op(b, '\x81');
}

void t_pk_build(struct dcp_buf *b)
{
	put_op(b, 'b');
}

void t_pk_persid(struct dcp_buf *b)
{
	put_op(b, 'Q');
}

void t_pk_put(struct dcp_buf *b, uint8_t memo)
{
	put_op(b, 'q');
	put_num(b, 1, memo);
}

void t_pk_dims(struct dcp_buf *b, const int64_t *dims, size_t n)
{
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		t_pk_int(b, dims[i]);
	t_pk_tuple(b);
}

void t_pk_numbers(struct dcp_buf *b, const int64_t *v, size_t n)
{
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		t_pk_int(b, v[i]);
	t_pk_appends(b);
}

void t_pk_storage(struct dcp_buf *b, const char *class, const char *key, int64_t numel)
{
	t_pk_mark(b);
	t_pk_str(b, "storage");
	t_pk_global(b, "torch", class);
	t_pk_str(b, key);
	t_pk_str(b, "cpu");
	t_pk_int(b, numel);
	t_pk_tuple(b);
	t_pk_persid(b);
}

void t_pk_tensor(struct dcp_buf *b, const char *class, const char *key, int64_t numel,
		 int64_t first, const int64_t *shape, const int64_t *stride, size_t ndim)
{
	t_pk_global(b, "torch._utils", "_rebuild_tensor_v2");
	t_pk_mark(b);
	t_pk_storage(b, class, key, numel);
	t_pk_int(b, first);
	t_pk_dims(b, shape, ndim);
	t_pk_dims(b, stride, ndim);
	t_pk_bool(b, false);
	t_pk_global(b, "collections", "OrderedDict");
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_reduce(b);
	t_pk_tuple(b);
	t_pk_reduce(b);
}

struct dcp_torch *t_torch_stream(struct t_zip *z, struct dcp_source *src, const char *p,
				 size_t n)
{
	struct dcp_torch *t = NULL;
	struct dcp_err err = { 0 };

	*z = (struct t_zip){ .torch = true };
	t_zip_add(z, "archive/data.pkl", p, n);
	t_zip_add(z, "archive/data/0", "abcd", 4);
	t_zip_end(z);
	*src = dcp_source_mem(z->b.p, z->b.n);
	if (dcp_torch_open(src, 0, &t, &err) < 0)
		fail_msg("%s", err.msg);
	return t;
}
