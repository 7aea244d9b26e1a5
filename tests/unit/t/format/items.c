/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/items.h"

#include "core/base/buf.h"
#include "core/format/format.h"
#include "tests/unit/t.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"

/* ---- metadata.pkl ---- */

static void text_pair(struct dcp_buf *b, const char *key, const char *value)
{
	t_pk_str(b, key);
	t_pk_str(b, value);
}

static void begin_dict(struct dcp_buf *b)
{
	t_pk_dict(b);
	t_pk_mark(b);
}

static void put_list(struct dcp_buf *b, const int64_t *v, size_t n, size_t step)
{
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		t_pk_int(b, v[i * step]);
	t_pk_appends(b);
}

static void put_placement(struct dcp_buf *b, const char *p)
{
	const char *slash = strchr(p, '/');

	begin_dict(b);
	text_pair(b, "type",
		  *p == 'S'   ? "Shard"
		  : *p == 'T' ? "StridedShard"
		  : *p == 'R' ? "Replicate"
			      : p);
	if (*p == 'S' || *p == 'T') {
		t_pk_str(b, "dim");
		t_pk_int(b, strtol(p + 1, NULL, 10));
	}
	if (slash) {
		t_pk_str(b, "split_factor");
		t_pk_int(b, strtol(slash + 1, NULL, 10));
	}
	t_pk_setitems(b);
}

static void put_ranks(struct dcp_buf *b, const struct t_titem *t)
{
	size_t n = t->nranks, product = 1;

	for (size_t i = 0; i < t->nmesh; i++)
		product *= (size_t)t->mesh[i];
	n = n ? n : product;
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		t_pk_int(b, t->ranks ? t->ranks[i] : (int64_t)i);
	t_pk_tuple(b);
}

static void put_mesh(struct dcp_buf *b, const struct t_titem *t)
{
	t_pk_str(b, "mesh_spec");
	begin_dict(b);
	text_pair(b, "device_type", "cpu");
	t_pk_str(b, "mesh_shape");
	t_pk_dims(b, t->mesh, t->nmesh);
	t_pk_str(b, "mesh_data");
	put_ranks(b, t);
	t_pk_str(b, "mesh_dim_names");
	t_pk_none(b);
	t_pk_setitems(b);
	t_pk_str(b, "placements");
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < t->nmesh; i++)
		put_placement(b, t->placed[i]);
	t_pk_appends(b);
}

static void put_boxes(struct dcp_buf *b, const struct t_titem *t)
{
	static const char *const names[] = { "global_offsets", "local_offsets", "local_sizes" };

	for (size_t corner = 0; corner < 3; corner++) {
		t_pk_str(b, names[corner]);
		t_pk_list(b);
		t_pk_mark(b);
		for (size_t i = 0; i < t->nboxes; i++)
			put_list(b, t->boxes + (3 * i + corner) * t->ndim, t->ndim, 1);
		t_pk_appends(b);
	}
}

/* One group. */
static void put_group(struct dcp_buf *b, const struct t_titem *t)
{
	begin_dict(b);
	t_pk_str(b, "sharding_metadata");
	begin_dict(b);
	text_pair(b, "type", t->type ? t->type : "DTensorShardingMetadata");
	t_pk_str(b, "data");
	begin_dict(b);
	t_pk_str(b, "global_shape");
	put_list(b, t->shape, t->ndim, 1);
	text_pair(b, "dtype", t->dtype ? t->dtype : "torch.float32");
	if (t->boxes)
		put_boxes(b, t);
	else
		put_mesh(b, t);
	t_pk_setitems(b);
	t_pk_setitems(b);
	t_pk_str(b, "ranks");
	put_ranks(b, t);
	t_pk_setitems(b);
}

/* All tensors; those that follow each other under one path are groups of it. */
static void put_tensors(struct dcp_buf *b, const struct t_titem_meta *m)
{
	begin_dict(b);
	for (size_t i = 0; i < m->ntensors; i++) {
		const struct t_titem *t = &m->tensor[i];
		char flat[300];

		snprintf(flat, sizeof(flat), "[\"%s\"%s%s", m->item,
			 strcmp(t->path, "[]") ? "," : "", t->path + 1);
		t_pk_str(b, m->flat ? flat : t->path);
		t_pk_list(b);
		t_pk_mark(b);
		put_group(b, t);
		for (; i + 1 < m->ntensors && strcmp(t->path, m->tensor[i + 1].path) == 0; i++)
			put_group(b, &m->tensor[i + 1]);
		t_pk_appends(b);
	}
	t_pk_setitems(b);
}

static void put_layout(struct dcp_buf *b, const struct t_titem_file *f)
{
	if (!f->path) {
		t_pk_none(b);
		return;
	}
	begin_dict(b);
	text_pair(b, "file_path", f->path);
	t_pk_str(b, "serialization_format");
	begin_dict(b);
	text_pair(b, "type", f->format);
	t_pk_setitems(b);
	t_pk_setitems(b);
}

static void put_files(struct dcp_buf *b, const struct t_titem_meta *m)
{
	begin_dict(b);
	for (size_t i = 0; i < m->nfiles; i++) {
		t_pk_int(b, m->file[i].rank);
		if (m->flat) {
			begin_dict(b);
			t_pk_str(b, m->item);
		}
		put_layout(b, &m->file[i]);
		if (m->flat)
			t_pk_setitems(b);
	}
	t_pk_setitems(b);
}

void t_titem_put_meta(const struct t_dir *d, const struct t_titem_meta *m)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	t_pk_start(&b);
	begin_dict(&b);
	t_pk_str(&b, "metadata");
	if (m->flat) {
		put_tensors(&b, m);
		t_pk_str(&b, "rank_to_layout_info_mappings");
		put_files(&b, m);
	} else {
		begin_dict(&b);
		t_pk_str(&b, m->item);
		begin_dict(&b);
		t_pk_str(&b, "nested_path_to_metadata");
		put_tensors(&b, m);
		t_pk_str(&b, "rank_to_layout_info");
		put_files(&b, m);
		t_pk_setitems(&b);
		t_pk_setitems(&b);
		text_pair(&b, "version", "2.0");
	}
	t_pk_str(&b, "world_size");
	t_pk_int(&b, m->world);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_dir_put(d, "metadata.pkl", b.p, b.n);
}

/* ---- files ---- */

static size_t count_elements(const struct t_titem_local *t)
{
	size_t n = 1;

	for (size_t k = 0; k < t->ndim; k++)
		n *= (size_t)t->shape[k];
	return n;
}

void t_titem_put_torch(const struct t_dir *d, const char *name, const struct t_titem_local *t,
		       size_t n)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	char member[40];

	t_pk_start(&b);
	begin_dict(&b);
	for (size_t i = 0; i < n; i++) {
		int64_t stride[8], step = 1;

		for (size_t k = t[i].ndim; k-- > 0; step *= t[i].shape[k])
			stride[k] = step;
		snprintf(member, sizeof(member), "%zu", i);
		t_pk_str(&b, t[i].key);
		t_pk_tensor(&b, "FloatStorage", member, (int64_t)count_elements(&t[i]), 0,
			    t[i].shape, stride, t[i].ndim);
	}
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/byteorder", "little", 6);
	for (size_t i = 0; i < n; i++) {
		snprintf(member, sizeof(member), "archive/data/%zu", i);
		t_zip_add(&z, member, t[i].data, count_elements(&t[i]) * sizeof(float));
	}
	t_zip_add(&z, "archive/version", "3\n", 2);
	t_zip_end(&z);
	t_dir_put(d, name, z.b.p, z.b.n);
	t_zip_free(&z);
}

void t_titem_put_safetensors(const struct t_dir *d, const char *name,
			     const struct t_titem_local *t, size_t n)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint64_t at = 0, length;

	dcp_buf_add(&b, &(uint64_t){ 0 }, 8);
	for (size_t i = 0; i < n; i++) {
		uint64_t end = at + count_elements(&t[i]) * sizeof(float);

		dcp_buf_printf(&b, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", i ? "," : "{",
			       t[i].key);
		for (size_t k = 0; k < t[i].ndim; k++)
			dcp_buf_printf(&b, "%s%lld", k ? "," : "", (long long)t[i].shape[k]);
		dcp_buf_printf(&b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			       (unsigned long long)end);
		at = end;
	}
	dcp_buf_str(&b, "}");
	length = b.n - 8;
	memcpy(b.p, &length, 8);
	for (size_t i = 0; i < n; i++)
		dcp_buf_add(&b, t[i].data, count_elements(&t[i]) * sizeof(float));
	t_dir_put(d, name, b.p, b.n);
}

/* ---- a sound one ---- */

static const int64_t two_ranks[] = { 2 }, shape_w[] = { 5, 2 }, shape_b[] = { 5 };
static const char *const by_rows[] = { "S0" }, *const copied[] = { "R" };

const struct t_titem t_titem_w = { .path = "[\"w\"]",
				   .shape = shape_w,
				   .ndim = 2,
				   .mesh = two_ranks,
				   .placed = by_rows,
				   .nmesh = 1 };
const struct t_titem t_titem_b = { .path = "[\"b\"]",
				   .shape = shape_b,
				   .ndim = 1,
				   .mesh = two_ranks,
				   .placed = copied,
				   .nmesh = 1 };
const struct t_titem_file t_titem_default[2] = { { 0, NULL, NULL }, { 1, NULL, NULL } };
const float t_titem_numbers[10] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };

void t_titem_put_sound(const struct t_dir *d)
{
	static const int64_t rows[2][2] = { { 3, 2 }, { 2, 2 } };
	const struct t_titem tensors[] = { t_titem_w, t_titem_b };
	const struct t_titem_meta m = { "model", false, 2, tensors, 2, t_titem_default, 2 };

	for (int r = 0; r < 2; r++) {
		const struct t_titem_local local[] = {
			{ "w", t_titem_numbers + 6 * r, rows[r], 2 },
			{ "b", t_titem_numbers, shape_b, 1 },
		};

		t_titem_put_torch(d, r ? "model_1.pt" : "model_0.pt", local, 2);
	}
	t_titem_put_meta(d, &m);
}

/* ---- loading ---- */

void t_titem_load(struct t_titem_loaded *l, const struct t_dir *d)
{
	struct dcp_load in = { .dir = &l->dir, .sink = &l->s.sink };
	enum dcp_match match;
	const struct dcp_format *f;

	assert_int_equal(dcp_dir_open(d->root, &l->dir, NULL), 0);
	f = dcp_format_probe(&l->dir, &match, NULL, 0);
	assert_non_null(f);
	assert_string_equal(f->name, "torch-checkpointing");
	t_sink_init(&l->s, &l->dir);
	l->err = (struct dcp_err){ 0 };
	l->rc = f->load(&in, &l->err);
}

void t_titem_unload(struct t_titem_loaded *l)
{
	t_sink_finish(&l->s);
	dcp_dir_close(&l->dir);
}

void t_titem_broken(const struct t_titem_loaded *l, const char *key, const char *part)
{
	const struct dcp_tensor *t = t_sink_tensor(&l->s, key);
	const struct dcp_object *o = t_sink_object(&l->s, key);
	const char *error = t ? t->error : o ? o->error : NULL;

	if (!error || !strstr(error, part))
		fail_msg("%s: \"%s\" does not say \"%s\"", key, error ? error : "(none)", part);
}

void t_titem_sound(const struct t_titem_loaded *l, const char *key)
{
	const struct dcp_tensor *t = t_sink_tensor(&l->s, key);

	if (!t || t->error)
		fail_msg("%s: %s", key, t ? t->error : "was not told");
}
