/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/composer.h"

#include "core/base/buf.h"
#include "tests/unit/t.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"

static int64_t cut_at(const struct t_composer_rank *k, int64_t r)
{
	int64_t each = (k->rows + k->ranks - 1) / k->ranks;

	return r * each < k->rows ? r * each : k->rows;
}

static void pk_numbers(struct dcp_buf *b, int64_t x, int64_t y)
{
	t_pk_list(b);
	t_pk_mark(b);
	t_pk_int(b, x);
	t_pk_int(b, y);
	t_pk_appends(b);
}

/* A dataclass without fields yet; state follows. */
static void pk_new(struct dcp_buf *b, const char *module, const char *name)
{
	t_pk_global(b, module, name);
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_newobj(b);
}

#define SHARD "torch.distributed._shard."

/* The state of a dataclass with __slots__: (None, {...}); closed by pk_fields_end(). */
static void pk_fields(struct dcp_buf *b)
{
	t_pk_mark(b);
	t_pk_none(b);
	t_pk_dict(b);
	t_pk_mark(b);
}

static void pk_fields_end(struct dcp_buf *b)
{
	t_pk_setitems(b);
	t_pk_tuple(b);
	t_pk_build(b);
}

static void pk_shard_metadata(struct dcp_buf *b, int64_t lo, int64_t n, int64_t rank)
{
	pk_new(b, SHARD "metadata", "ShardMetadata");
	pk_fields(b);
	t_pk_str(b, "shard_offsets");
	pk_numbers(b, lo, 0);
	t_pk_str(b, "shard_sizes");
	pk_numbers(b, n, 2);
	t_pk_str(b, "placement");
	pk_new(b, "torch.distributed.remote_device", "_remote_device");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "_rank");
	t_pk_int(b, rank);
	t_pk_setitems(b);
	t_pk_build(b);
	pk_fields_end(b);
}

static void pk_tensor_metadata(struct dcp_buf *b, const struct t_composer_rank *k)
{
	int64_t size[2] = { k->rows + k->more_rows, 2 };

	pk_new(b, SHARD "sharded_tensor.metadata", "ShardedTensorMetadata");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "shards_metadata");
	t_pk_list(b);
	t_pk_mark(b);
	for (int64_t r = 0; r < k->ranks; r++)
		pk_shard_metadata(b, cut_at(k, r), cut_at(k, r + 1) - cut_at(k, r), r);
	t_pk_appends(b);
	t_pk_str(b, "size");
	t_pk_global(b, "torch", "Size");
	t_pk_mark(b);
	t_pk_dims(b, size, 2);
	t_pk_tuple(b);
	t_pk_reduce(b);
	t_pk_str(b, "tensor_properties");
	pk_new(b, SHARD "sharded_tensor.metadata", "TensorProperties");
	t_pk_mark(b);
	t_pk_global(b, "torch", k->dtype ? k->dtype : "float32");
	t_pk_bool(b, false);
	t_pk_tuple(b);
	t_pk_build(b);
	t_pk_setitems(b);
	t_pk_build(b);
}

static void pk_local_shard(struct dcp_buf *b, const struct t_composer_rank *k)
{
	int64_t n = cut_at(k, k->r + 1) - cut_at(k, k->r);
	int64_t shape[2] = { n, 2 }, rows[2] = { 2, 1 }, columns[2] = { 1, n };

	pk_new(b, SHARD "sharded_tensor.shard", "Shard");
	pk_fields(b);
	t_pk_str(b, "tensor");
	t_pk_tensor(b, "FloatStorage", "0", n * 2, 0, shape, k->by_column ? columns : rows, 2);
	t_pk_str(b, "metadata");
	pk_shard_metadata(b, cut_at(k, k->r), n + k->bad_sizes, k->r);
	pk_fields_end(b);
}

static void pk_state(struct dcp_buf *b, const struct t_composer_rank *k)
{
	t_pk_mark(b);
	if (!k->no_state) {
		t_pk_list(b);
		t_pk_mark(b);
		if (cut_at(k, k->r + 1) > cut_at(k, k->r))
			pk_local_shard(b, k);
		t_pk_appends(b);
		pk_tensor_metadata(b, k);
		t_pk_none(b);
	}
	t_pk_tuple(b);
}

static void pk_sharded_tensor(struct dcp_buf *b, const struct t_composer_rank *k)
{
	static const char module[] = SHARD "sharded_tensor.api";

	if (k->old) {
		pk_new(b, module, "ShardedTensor");
		pk_state(b, k);
		t_pk_build(b);
		return;
	}
	t_pk_global(b, "torch._tensor", "_rebuild_from_type_v2");
	t_pk_mark(b);
	t_pk_global(b, "torch._utils", "_rebuild_wrapper_subclass");
	t_pk_global(b, module, "ShardedTensor");
	t_pk_mark(b);
	t_pk_tuple(b);
	pk_state(b, k);
	t_pk_tuple(b);
	t_pk_reduce(b);
}

void t_composer_rank(struct t_zip *z, const struct t_composer_rank *k)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	int64_t lo = cut_at(k, k->r), n = cut_at(k, k->r + 1) - lo, one = 1, step = 1;
	float *w = calloc((size_t)n * 2 + 1, sizeof(*w)), same = 7;
	char only[16];

	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < 2; j++)
			w[k->by_column ? j * n + i : i * 2 + j] = (float)(10 * (lo + i) + j);
	*z = (struct t_zip){ .torch = true };
	snprintf(only, sizeof(only), "only%d", (int)k->r);
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "state");
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "model");
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "w");
	pk_sharded_tensor(&b, k);
	t_pk_str(&b, "b");
	t_pk_tensor(&b, "FloatStorage", "1", 1, 0, &one, &step, 1);
	t_pk_setitems(&b);
	t_pk_str(&b, "run_name");
	t_pk_str(&b, "tiny");
	t_pk_str(&b, only);
	t_pk_int(&b, k->r);
	t_pk_setitems(&b);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(z, "archive/data.pkl", b.p, b.n);
	t_zip_add(z, "archive/data/0", w, (size_t)n * 2 * sizeof(*w));
	t_zip_add(z, "archive/data/1", &same, sizeof(same));
	t_zip_end(z);
	free(w);
}

void t_composer_rank_file(const struct t_dir *to, const struct t_composer_rank *k)
{
	struct t_zip z;
	char name[64];

	t_composer_rank(&z, k);
	snprintf(name, sizeof(name), "ep0-ba2-rank%d.pt", (int)k->r);
	t_dir_put(to, name, z.b.p, z.b.n);
	t_zip_free(&z);
}
