/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/ds.h"

#include "core/format/formats.h"
#include "tests/unit/t.h"

float t_ds_value(const char *state, const char *name, uint64_t element)
{
	uint32_t h = 5381;

	for (; *state; state++)
		h = h * 33 + (uint8_t)*state;
	for (; *name; name++)
		h = h * 33 + (uint8_t)*name;
	return (float)(h % 100000) + (float)element / 1024;
}

size_t t_ds_numel(const struct t_ds_param *p)
{
	size_t n = 1;

	for (size_t d = 0; d < p->ndim; d++)
		n *= (size_t)p->shape[d];
	return n;
}

/* ---- loading ---- */

void t_ds_make(struct t_ds_loaded *l, const struct t_ds *c)
{
	*l = (struct t_ds_loaded){ 0 };
	t_dir_make(&l->tree, "deepspeed");
	if (c)
		t_ds_write(c, &l->tree, "");
}

void t_ds_load(struct t_ds_loaded *l, const char *path, bool uncommitted)
{
	struct dcp_load in = { .dir = &l->dir, .sink = &l->s.sink, .uncommitted = uncommitted };
	const struct dcp_format *format;
	enum dcp_match match;

	assert_int_equal(dcp_dir_open(path ? path : l->tree.root, &l->dir, NULL), 0);
	t_sink_init(&l->s, &l->dir);
	format = dcp_format_probe(&l->dir, &match, NULL, 0);
	format = format == &dcp_format_deepspeed_universal ? format : &dcp_format_deepspeed;
	l->rc = format->load(&in, &l->err);
}

void t_ds_unload(struct t_ds_loaded *l)
{
	t_sink_finish(&l->s);
	dcp_dir_close(&l->dir);
	if (l->tree.root[0])
		t_dir_remove(&l->tree);
}

void t_ds_no_errors(const struct t_sink *s)
{
	for (size_t i = 0; i < s->ntensors; i++)
		if (s->tensor[i].error)
			fail_msg("%s: %s", s->tensor[i].key, s->tensor[i].error);
	for (size_t i = 0; i < s->nobjects; i++)
		if (s->object[i].error)
			fail_msg("%s: %s", s->object[i].key, s->object[i].error);
	for (size_t i = 0; i < s->ntensors; i++)
		assert_true(t_sink_tensor(s, s->tensor[i].key) == &s->tensor[i]);
	for (size_t i = 0; i < s->nobjects; i++)
		assert_true(t_sink_object(s, s->object[i].key) == &s->object[i]);
}

/* ---- checking ---- */

static const char *const states[] = { "fp32", "exp_avg", "exp_avg_sq" };

void t_ds_check_one(const struct t_sink *s, const char *key, const char *state,
		    const char *name, uint64_t n)
{
	const struct dcp_tensor *t = t_sink_tensor(s, key);
	struct dcp_err err = { 0 };
	size_t nbytes;
	char *bytes;

	if (!t)
		fail_msg("%s was not told", key);
	bytes = t_sink_read(s, t, &nbytes, &err);
	if (!bytes)
		fail_msg("%s: %s", key, err.msg);
	assert_int_equal(nbytes, n * sizeof(float));
	for (uint64_t i = 0; i < n; i++) {
		float v, want = t_ds_value(state, name, i);

		memcpy(&v, bytes + i * sizeof(v), sizeof(v));
		if (memcmp(&v, &want, sizeof(v)) != 0)
			fail_msg("%s: element %llu is %g, expected %g", key,
				 (unsigned long long)i, (double)v, (double)want);
	}
	free(bytes);
}

unsigned t_ds_check(const struct t_ds *c, const struct t_sink *s)
{
	unsigned n = 0;

	for (size_t i = 0; i < c->nparams; i++) {
		const struct t_ds_param *p = &c->param[i];
		const char *names[] = { p->name, p->tied };

		for (size_t k = 0; k < 2 && names[k]; k++)
			for (size_t j = 0; j < DCP_LEN(states); j++) {
				char key[160];
				const struct dcp_tensor *t;

				if (p->frozen && j > 0)
					continue;
				snprintf(key, sizeof(key), "%s.%s", states[j], names[k]);
				t_ds_check_one(s, key, p->frozen ? "module" : states[j],
					       p->name, t_ds_numel(p));
				t = t_sink_tensor(s, key);
				assert_int_equal(t->ndim, p->ndim);
				for (size_t d = 0; d < p->ndim; d++)
					assert_int_equal(t->shape[d], p->shape[d]);
				assert_string_equal(t->path[0], states[j]);
				assert_string_equal(t->path[1], names[k]);
				assert_int_equal(t->npath, 2);
				if (k == 1)
					assert_non_null(t->alias_of);
				n++;
			}
	}
	return n;
}
