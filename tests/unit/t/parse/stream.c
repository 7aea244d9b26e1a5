/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/parse/stream.h"

#include "tests/unit/t.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"

void t_stream_tensor(struct t_stream *s, const char *class, const void *p, size_t numel,
		     size_t size, size_t first, const int64_t *shape, size_t ndim)
{
	int64_t stride[8], step = 1;
	char key[16];

	if (s->n == 0 && s->pk.n == 0)
		t_pk_start(&s->pk);
	assert_true(s->n < DCP_LEN(s->data) && ndim <= 8);
	for (size_t d = ndim; d-- > 0; step *= shape[d])
		stride[d] = step;
	snprintf(key, sizeof(key), "%zu", s->n);
	dcp_buf_add(&s->data[s->n++], p, numel * size);
	t_pk_tensor(&s->pk, class, key, (int64_t)numel, (int64_t)first, shape, stride, ndim);
}

void t_stream_key(struct t_stream *s, const char *key)
{
	t_pk_str(&s->pk, key);
}

void t_stream_put(struct t_stream *s, const struct t_dir *d, const char *name)
{
	struct t_zip z = { .torch = true };
	char member[40];

	t_pk_stop(&s->pk);
	t_zip_add(&z, "a/data.pkl", s->pk.p, s->pk.n);
	for (size_t i = 0; i < s->n; i++) {
		snprintf(member, sizeof(member), "a/data/%zu", i);
		t_zip_add(&z, member, s->data[i].p, s->data[i].n);
		dcp_buf_finish(&s->data[i]);
	}
	t_zip_end(&z);
	t_dir_put(d, name, z.b.p, z.b.n);
	t_zip_free(&z);
	dcp_buf_finish(&s->pk);
	s->n = 0;
}
