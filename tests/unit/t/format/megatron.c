/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/megatron.h"

#include "core/format/format.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/zip.h"

/* ---- files ---- */

static void put_args(struct dcp_buf *b, const struct t_megatron_arg *args)
{
	t_pk_str(b, "args");
	t_pk_global(b, "argparse", "Namespace");
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_newobj(b);
	t_pk_dict(b);
	t_pk_mark(b);
	for (; args->name; args++) {
		t_pk_str(b, args->name);
		t_pk_int(b, args->v);
	}
	t_pk_setitems(b);
	t_pk_build(b);
}

void t_megatron_begin(struct t_megatron_file *f, const struct t_megatron_arg *args,
		      double version)
{
	memset(f, 0, sizeof(*f));
	t_pk_start(&f->pickle);
	t_pk_dict(&f->pickle);
	t_pk_mark(&f->pickle);
	if (args)
		put_args(&f->pickle, args);
	if (version >= 0) {
		t_pk_str(&f->pickle, "checkpoint_version");
		t_pk_float(&f->pickle, version);
	}
}

void t_megatron_object(struct t_megatron_file *f, const char *key, int64_t v)
{
	t_pk_str(&f->pickle, key);
	t_pk_int(&f->pickle, v);
}

static void end_model(struct t_megatron_file *f)
{
	if (f->in_model)
		t_pk_setitems(&f->pickle);
	f->in_model = false;
}

void t_megatron_model(struct t_megatron_file *f, const char *name)
{
	end_model(f);
	f->in_model = true;
	t_pk_str(&f->pickle, name);
	t_pk_dict(&f->pickle);
	t_pk_mark(&f->pickle);
}

void t_megatron_param(struct t_megatron_file *f, const char *key, const float *v,
		      const int64_t *shape, size_t ndim)
{
	int64_t stride[4], n = 1;
	char number[16];

	assert_true(ndim <= 4 && f->nparams < T_MEGATRON_PARAMS);
	for (size_t k = ndim; k-- > 0; n *= shape[k])
		stride[k] = n;
	dcp_buf_add(&f->data[f->nparams], v, (size_t)n * sizeof(*v));
	snprintf(number, sizeof(number), "%zu", f->nparams++);
	t_pk_str(&f->pickle, key);
	t_pk_tensor(&f->pickle, "FloatStorage", number, n, 0, shape, stride, ndim);
}

void t_megatron_end(struct t_megatron_file *f, const struct t_dir *tree, const char *name)
{
	struct t_zip z = { .torch = true };

	end_model(f);
	t_pk_setitems(&f->pickle);
	t_pk_stop(&f->pickle);
	t_zip_add(&z, "archive/data.pkl", f->pickle.p, f->pickle.n);
	for (size_t i = 0; i < f->nparams; i++) {
		char member[40];

		snprintf(member, sizeof(member), "archive/data/%zu", i);
		t_zip_add(&z, member, f->data[i].p, f->data[i].n);
		dcp_buf_finish(&f->data[i]);
	}
	t_zip_end(&z);
	t_dir_put(tree, name, z.b.p, z.b.n);
	t_zip_free(&z);
	dcp_buf_finish(&f->pickle);
}

void t_megatron_dir(char name[64], int tp, int pp, int ep, int npp, int nep)
{
	int at = snprintf(name, 64, "mp_rank_%02d", tp);

	if (npp > 1)
		at += snprintf(name + at, 64 - (size_t)at, "_%03d", pp);
	if (nep > 1)
		snprintf(name + at, 64 - (size_t)at, "_%03d", ep);
}

/* ---- whole jobs ---- */

/* Each element its number in the whole: what rank @t of the job holds. */
static void slice_param(float *v, const struct t_megatron_job *j,
			const struct t_megatron_param *p, int t, int64_t *shape)
{
	int64_t rows = p->ndim > 1 ? p->shape[0] : 1, cols = p->shape[p->ndim - 1];
	int64_t along = p->cut < 0 ? 1 : p->shape[p->cut];
	int64_t each = along / p->groups / j->tp;

	shape[0] = p->shape[0];
	shape[1] = p->shape[1];
	if (p->cut >= 0)
		shape[p->cut] = along / j->tp;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			int64_t i = p->ndim > 1 && p->cut == 0 ? r : c;

			if (p->cut < 0 || i % (along / p->groups) / each == t)
				*v++ = (float)(r * cols + c);
		}
}

/* "model", or "model<c>" of several: its parameters that this rank holds. */
static void put_chunk(struct t_megatron_file *f, const struct t_megatron_job *j, int c, int t,
		      int s, int e)
{
	char name[16];

	snprintf(name, sizeof(name), j->chunks ? "model%d" : "model", c);
	t_megatron_model(f, name);
	for (size_t i = 0; i < T_MEGATRON_KEYS && j->param[i].key; i++) {
		const struct t_megatron_param *p = &j->param[i];
		float v[T_MEGATRON_ELEMS];
		int64_t shape[2];

		if ((p->pp >= 0 && p->pp != s) || (p->ep >= 0 && p->ep != e) || p->chunk != c)
			continue;
		slice_param(v, j, p, t, shape);
		t_megatron_param(f, p->key, v, shape, p->ndim);
	}
}

void t_megatron_rank(const struct t_dir *tree, const struct t_megatron_job *j, int t, int s,
		     int e, const char *dir)
{
	const struct t_megatron_arg args[] = { { "tensor_model_parallel_size", j->tp },
					       { "pipeline_model_parallel_size", j->pp },
					       { "expert_model_parallel_size", j->ep },
					       { "expert_tensor_parallel_size", j->etp },
					       { "num_experts", j->experts },
					       { "padded_vocab_size", j->vocab },
					       { NULL, 0 } };
	struct t_megatron_file f;
	char path[96];

	t_megatron_begin(&f, args, 3.0);
	t_megatron_object(&f, "seed", t);
	for (int c = 0; c < DCP_MAX(j->chunks, 1); c++)
		put_chunk(&f, j, c, t, s, e);
	snprintf(path, sizeof(path), "%s/model_optim_rng.pt", dir);
	t_megatron_end(&f, tree, path);
}

void t_megatron_job(const struct t_dir *tree, const struct t_megatron_job *j)
{
	for (int t = 0; t < j->tp; t++)
		for (int s = 0; s < j->pp; s++)
			for (int e = 0; e < j->ep; e++) {
				char dir[64];

				t_megatron_dir(dir, t, s, e, j->pp, j->ep);
				if (!j->skip || strcmp(j->skip, dir) != 0)
					t_megatron_rank(tree, j, t, s, e, dir);
			}
	if (j->rules)
		t_dir_text(tree, "dcpfs.rules", j->rules);
}

/* ---- what is told ---- */

int t_megatron_load(struct t_megatron *m, const char *root, const char *family)
{
	enum dcp_match match;
	const struct dcp_format *f;

	m->err = (struct dcp_err){ 0 };
	assert_int_equal(dcp_dir_open(root, &m->dir, NULL), 0);
	f = dcp_format_probe(&m->dir, &match, NULL, 0);
	assert_non_null(f);
	assert_string_equal(f->name, family);
	t_sink_init(&m->s, &m->dir);
	return f->load(&(struct dcp_load){ .dir = &m->dir, .sink = &m->s.sink }, &m->err);
}

void t_megatron_close(struct t_megatron *m)
{
	t_sink_finish(&m->s);
	dcp_dir_close(&m->dir);
}

const char *t_megatron_error(const struct t_megatron *m, const char *key)
{
	const struct dcp_tensor *t = t_sink_tensor(&m->s, key);
	const struct dcp_object *o = t_sink_object(&m->s, key);

	return t ? t->error : o ? o->error : "it was not told";
}

void t_megatron_check(const struct t_megatron *m, const char *key, const float *v,
		      const int64_t *shape, size_t ndim)
{
	const struct dcp_tensor *t = t_sink_tensor(&m->s, key);
	struct dcp_err err = { 0 };
	size_t n, want = 1;
	float *got;

	if (!t)
		fail_msg("%s was not told", key);
	if (t->error)
		fail_msg("%s: %s", key, t->error);
	assert_int_equal(t->npath, 1);
	assert_string_equal(t->path[0], key);
	assert_int_equal(t->ndim, ndim);
	for (size_t k = 0; k < ndim; k++) {
		if ((int64_t)t->shape[k] != shape[k])
			fail_msg("%s: dimension %zu is %d, not %d", key, k, (int)t->shape[k],
				 (int)shape[k]);
		want *= (size_t)shape[k];
	}
	got = (float *)(void *)t_sink_read(&m->s, t, &n, &err);
	if (!got)
		fail_msg("%s: %s", key, err.msg);
	assert_int_equal(n, want * sizeof(*got));
	for (size_t i = 0; i < want; i++)
		if (got[i] != v[i])
			fail_msg("%s: element %zu is %g, not %g", key, i, (double)got[i],
				 (double)v[i]);
	free(got);
}
