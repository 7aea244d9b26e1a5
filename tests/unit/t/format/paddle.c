/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/paddle.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"

#define OLD "paddle.distributed.checkpoint.metadata"
#define NEW "paddle.distributed.flex_checkpoint.dcp.metadata"

/* ---- metadata ---- */

void t_paddle_class(struct dcp_buf *b, char generation, const char *name)
{
	t_pk_global(b, generation == 'C' ? NEW : OLD, name);
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_newobj(b);
	t_pk_dict(b);
	t_pk_mark(b);
}

static void end_object(struct dcp_buf *b)
{
	t_pk_setitems(b);
	t_pk_build(b);
}

static void put_dims(struct dcp_buf *b, const char *name, const int64_t *v, uint32_t n)
{
	t_pk_str(b, name);
	t_pk_dims(b, v, n);
}

static void put_run(struct dcp_buf *b, const struct t_pd_piece *p)
{
	t_pk_str(b, "is_flattened");
	t_pk_bool(b, p->flat);
	t_pk_str(b, "flattened_range");
	if (p->flat)
		t_pk_dims(b, p->run, 2);
	else
		t_pk_none(b);
}

static void put_entry(struct dcp_buf *b, char generation, const struct t_pd_piece *p)
{
	t_paddle_class(b, generation, "LocalTensorMetadata");
	put_dims(b, "global_offset", p->lo, p->ndim);
	put_dims(b, "local_shape", p->len, p->ndim);
	if (generation >= 'B') {
		t_pk_str(b, "dtype");
		t_pk_str(b, p->dtype);
	}
	if (generation >= 'C') {
		put_dims(b, "global_shape", p->shape, p->ndim);
		put_run(b, p);
	}
	end_object(b);
}

void t_paddle_state(struct dcp_buf *b, char generation, const struct t_pd_piece *p, size_t n)
{
	t_pk_str(b, "state_dict_metadata");
	t_pk_dict(b);
	t_pk_mark(b);
	for (size_t i = 0, next; i < n; i = next) {
		t_pk_str(b, p[i].key);
		t_pk_list(b);
		t_pk_mark(b);
		for (next = i; next < n && strcmp(p[next].key, p[i].key) == 0; next++)
			if (!p[next].only_stored)
				put_entry(b, generation, &p[next]);
		t_pk_appends(b);
	}
	t_pk_setitems(b);
}

void t_paddle_storage(struct dcp_buf *b, char generation, const struct t_pd_piece *p, size_t n)
{
	t_pk_str(b, "storage_metadata");
	t_pk_dict(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++) {
		if (!p[i].file)
			continue;
		t_paddle_class(b, generation, "LocalTensorIndex");
		t_pk_str(b, "tensor_key");
		t_pk_str(b, p[i].key);
		put_dims(b, "global_offset", p[i].lo, p[i].ndim);
		if (generation >= 'C') {
			put_run(b, &p[i]);
			t_pk_str(b, "replica_id");
			if (p[i].replica < 0)
				t_pk_none(b);
			else
				t_pk_int(b, p[i].replica);
			put_dims(b, "local_shape", p[i].len, p[i].ndim);
		}
		end_object(b);
		t_pk_str(b, p[i].file);
	}
	t_pk_setitems(b);
}

void t_paddle_meta(struct dcp_buf *b, char generation, const struct t_pd_piece *p, size_t n)
{
	t_pk_start(b);
	t_paddle_class(b, generation, "Metadata");
	t_paddle_state(b, generation, p, n);
	t_paddle_storage(b, generation, p, n);
	if (generation >= 'B') {
		t_pk_str(b, "flat_mapping");
		t_pk_dict(b);
		t_pk_mark(b);
		for (size_t i = 0; i < n; i++) {
			t_pk_str(b, p[i].key);
			t_pk_mark(b);
			t_pk_str(b, "top");
			t_pk_str(b, p[i].key);
			t_pk_tuple(b);
		}
		t_pk_setitems(b);
	}
	end_object(b);
	t_pk_stop(b);
}

/* ---- data ---- */

void t_paddle_open(struct dcp_buf *b, int protocol)
{
	const char head[2] = { '\x80', (char)protocol };

	dcp_buf_add(b, head, 2);
	t_pk_dict(b);
	t_pk_mark(b);
}

static void put_dtype(struct dcp_buf *b, const char *code)
{
	t_pk_global(b, "numpy", "dtype");
	t_pk_mark(b);
	t_pk_str(b, code);
	t_pk_bool(b, false);
	t_pk_bool(b, true);
	t_pk_tuple(b);
	t_pk_reduce(b);
	t_pk_mark(b);
	t_pk_int(b, 3);
	t_pk_str(b, code[1] == '1' ? "|" : "<");
	for (int i = 0; i < 3; i++)
		t_pk_none(b);
	t_pk_int(b, -1);
	t_pk_int(b, -1);
	t_pk_int(b, 0);
	t_pk_tuple(b);
	t_pk_build(b);
}

/* _codecs.encode(text, "latin1") */
static void put_text(struct dcp_buf *b, const uint8_t *bytes, size_t n)
{
	struct dcp_buf s = DCP_BUF_INIT;

	for (size_t i = 0; i < n; i++) {
		const char c[2] = { (char)(0xc0 | bytes[i] >> 6),
				    (char)(0x80 | (bytes[i] & 63)) };

		dcp_buf_add(&s, bytes[i] < 0x80 ? (const char *)&bytes[i] : c,
			    bytes[i] < 0x80 ? 1 : 2);
	}
	t_pk_global(b, "_codecs", "encode");
	t_pk_mark(b);
	t_pk_str_n(b, s.p ? s.p : "", s.n);
	t_pk_str(b, "latin1");
	t_pk_tuple(b);
	t_pk_reduce(b);
	dcp_buf_finish(&s);
}

void t_paddle_array(struct dcp_buf *b, const char *key, const char *code, uint32_t ndim,
		    const int64_t *shape, const void *bytes, size_t n)
{
	static const int64_t zero[1];

	t_pk_str(b, key);
	t_pk_global(b, "numpy.core.multiarray", "_reconstruct");
	t_pk_mark(b);
	t_pk_global(b, "numpy", "ndarray");
	t_pk_dims(b, zero, 1);
	t_pk_bytes(b, "b", 1);
	t_pk_tuple(b);
	t_pk_reduce(b);
	t_pk_mark(b);
	t_pk_int(b, 1);
	t_pk_dims(b, shape, ndim);
	put_dtype(b, code);
	t_pk_bool(b, false);
	if (b->p[1] == 2)
		put_text(b, bytes, n);
	else
		t_pk_bytes(b, bytes, n);
	t_pk_tuple(b);
	t_pk_build(b);
}

void t_paddle_slices(struct dcp_buf *b, struct dcp_buf *big, const char *key, const char *code,
		     uint32_t ndim, const int64_t *shape, const void *bytes, size_t n,
		     size_t size, size_t each)
{
	t_pk_str(big, key);
	t_pk_dict(big);
	t_pk_mark(big);
	t_pk_str(big, "OriginShape");
	t_pk_dims(big, shape, ndim);
	t_pk_str(big, "slices");
	t_pk_list(big);
	t_pk_mark(big);
	for (size_t at = 0; at < n; at += each * size) {
		size_t left = n - at < each * size ? n - at : each * size;
		const int64_t elements = (int64_t)(left / size);
		char name[64];

		snprintf(name, sizeof(name), "%s@@.%zu", key, at / (each * size));
		t_pk_str(big, name);
		t_paddle_array(b, name, code, 1, &elements, (const char *)bytes + at, left);
	}
	t_pk_appends(big);
	t_pk_setitems(big);
}

void t_paddle_sliced(struct dcp_buf *b, const struct dcp_buf *big)
{
	t_pk_str(b, "UnpackBigParamInfor@@");
	t_pk_dict(b);
	t_pk_mark(b);
	dcp_buf_add(b, big->p, big->n);
	t_pk_setitems(b);
}

void t_paddle_close(struct dcp_buf *b)
{
	t_pk_str(b, "StructuredToParameterName@@");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "w");
	t_pk_str(b, "linear_0.w_0");
	t_pk_setitems(b);
	t_pk_setitems(b);
	t_pk_stop(b);
}

void t_paddle_put(const struct t_dir *dir, const char *below, unsigned uid, const char *key)
{
	struct t_pd_piece p = { .key = key,
				.dtype = "float32",
				.ndim = 1,
				.len = { 2 },
				.shape = { 2 },
				.replica = -1 };
	struct dcp_buf meta = DCP_BUF_INIT, data = DCP_BUF_INIT;
	char file[32], name[128];
	float v[2] = { (float)uid, 0.5f };

	snprintf(file, sizeof(file), "0_%u.distcp", uid);
	p.file = file;
	t_paddle_meta(&meta, 'C', &p, 1);
	t_paddle_open(&data, 4);
	t_paddle_array(&data, key, "f4", 1, p.len, v, sizeof(v));
	t_paddle_close(&data);
	snprintf(name, sizeof(name), "%s%s", below, file);
	t_dir_put(dir, name, data.p, data.n);
	snprintf(name, sizeof(name), "%s%u.metadata", below, uid);
	t_dir_put(dir, name, meta.p, meta.n);
	dcp_buf_finish(&meta);
	dcp_buf_finish(&data);
}
