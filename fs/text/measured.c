/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/text.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/model/measure/fields.h"
#include "core/remote/http.h"
#include "core/store/index/index.h"
#include "fs/fs.h"
#include "fs/text/spool.h"

enum {
	DTYPE_MOST = 128, /* bytes of a dtype's name; a longer one is null */
	ESCAPED = 6,      /* bytes that one takes in JSON, at most */
	NUMBER_MOST = 26, /* a number and what is between two */
	BLOCK = 512,
};

struct dcp_measures *dcpfs_measures(struct dcpfs_version *ver)
{
	struct dcp_measures *m = __atomic_load_n(&ver->measures, __ATOMIC_ACQUIRE),
			    *before = NULL;

	if (m || dcp_measures_open(dcpfs_opened(ver), &m) < 0)
		return m;
	if (__atomic_compare_exchange_n(&ver->measures, &before, m, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return m;
	dcp_measures_close(m);
	return before;
}

void dcpfs_measured_put(const struct dcp_measured *m, const struct dcp_row *row,
			struct dcp_jsonw *w)
{
	struct dcp_stats_of of = { .s = &m->s,
				   .dtype = row->dtype,
				   .unwritten = m->unwritten,
				   .ndim = row->ndim,
				   .shape = row->shape };
	struct dcp_stats_fields all;

	dcp_stats_fields(&of, &all);
	dcp_stats_fields_json(&all, w);
}

uint64_t dcpfs_measured_size(const struct dcp_row *row)
{
	uint64_t most = ESCAPED * (strlen(row->key) + DTYPE_MOST) +
			(DCP_STATS_FIELDS + 2 * row->ndim) * NUMBER_MOST +
			strlen(DCP_STATS_FIELD_NAMES) + 2 * BLOCK;

	return (most + BLOCK - 1) / BLOCK * BLOCK;
}

bool dcpfs_measured_is_known(struct dcpfs_version *ver, int64_t id)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 20);
	struct dcp_measures *known = dcpfs_opened(ver) ? dcpfs_measures(ver) : NULL;
	struct dcp_measured m;
	struct dcp_row row;

	return known &&
	       dcp_index_by_id(dcpfs_index(ver), DCP_ROW_TENSOR, id, &arena, &row) == 0 &&
	       dcp_measures_know(known, &row, &m);
}

/* Has the program that opens the file been interrupted, or does the mount end? */
static bool is_over(void *ctx, uint64_t done, uint64_t all)
{
	const struct dcpfs_kernel *k = ((const struct dcpfs *)ctx)->opts.kernel;

	return dcp_http_stopped() || (k && k->ended(k->ctx));
}

int dcpfs_measured_make(struct dcpfs *fs, struct dcpfs_version *ver, int64_t id,
			struct dcpfs_text *out, struct dcp_err *err)
{
	const struct dcp_measure_stop stop = { is_over, fs };

	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_measures *known = dcpfs_measures(ver);
	struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_measured m;
	struct dcp_jsonw w;
	struct dcp_tensor t;
	struct dcp_row row;
	uint64_t size;
	int rc = known ? dcp_index_by_id(dcpfs_index(ver), DCP_ROW_TENSOR, id, &arena, &row)
		       : -ENOMEM;

	if (rc == 0)
		rc = dcp_index_tensor(dcpfs_index(ver), id, &arena, &t, err);
	if (rc == 0)
		rc = dcp_measures_get(known, &row, NULL, &stop, &m, err);
	if (rc < 0)
		return dcp_err_say(err, rc);
	dcp_jsonw_init(&w, &b, true);
	dcp_jsonw_object(&w);
	dcp_jsonw_put_str(&w, "name", row.key);
	dcp_jsonw_put_u64(&w, "tensors", 1);
	dcp_jsonw_put_str_or_null(&w, "dtype",
				  strlen(t.dtype_name) <= DTYPE_MOST ? t.dtype_name : NULL);
	dcpfs_measured_put(&m, &row, &w);
	dcp_jsonw_end(&w);
	size = dcpfs_measured_size(&row);
	while (b.n + 1 < size && dcp_buf_error(&b) == 0)
		dcp_buf_str(&b, " ");
	dcp_buf_str(&b, "\n");
	return dcpfs_text_from_buf(out, &b);
}
