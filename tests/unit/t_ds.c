/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t_ds.h"

#include "tests/unit/t.h"
#include "tests/unit/t_dir.h"
#include "tests/unit/t_sink.h"
#include "tests/unit/t_torch.h"
#include "tests/unit/t_zip.h"

static const char *const states[] = { "fp32", "exp_avg", "exp_avg_sq" };

/* ---- streams ---- */

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

/* ---- values ---- */

float t_ds_value(const char *state, const char *name, uint64_t element)
{
	uint32_t h = 5381;

	for (; *state; state++)
		h = h * 33 + (uint8_t)*state;
	for (; *name; name++)
		h = h * 33 + (uint8_t)*name;
	return (float)(h % 100000) + (float)element / 1024;
}

static size_t numel(const struct t_ds_param *p)
{
	size_t n = 1;

	for (size_t d = 0; d < p->ndim; d++)
		n *= (size_t)p->shape[d];
	return n;
}

static void fill(float *to, const struct t_ds *c, const char *state, const struct t_ds_param *p)
{
	for (size_t i = 0; i < numel(p); i++)
		to[i] = t_ds_value(state, p->name, i) + T_DS_RANK * (float)c->mp;
}

/* ---- optimizer files ---- */

struct flat {
	float *v;
	size_t n;    /* with padding */
	size_t lean; /* without that at the end */
};

/* Stages 1 and 2: a whole group. */
static struct flat whole_group(const struct t_ds *c, unsigned group, const char *state)
{
	size_t unit = (size_t)c->world * (c->odd_unit ? 1 : 2);
	struct flat f = { .v = calloc(1 << 16, sizeof(float)) };

	assert_non_null(f.v);
	for (size_t i = 0; i < c->nparams; i++) {
		if (c->param[i].group != group || c->param[i].frozen)
			continue;
		while (c->align && f.lean % c->align)
			f.v[f.lean++] = -7;
		fill(f.v + f.lean, c, state, &c->param[i]);
		f.lean += numel(&c->param[i]);
	}
	for (f.n = f.lean; f.n % unit; f.n++)
		f.v[f.n] = -9;
	assert_true(f.n < 1 << 16);
	return f;
}

/* Stage 3: what one rank holds of a group. */
static struct flat rank_slices(const struct t_ds *c, unsigned group, const char *state,
			       unsigned rank)
{
	struct flat f = { .v = calloc(1 << 16, sizeof(float)) };
	float *whole = calloc(1 << 16, sizeof(float));

	assert_non_null(f.v);
	assert_non_null(whole);
	for (size_t i = 0; i < c->nparams; i++) {
		size_t n, each;

		if (c->param[i].group != group || c->param[i].frozen)
			continue;
		n = numel(&c->param[i]);
		each = (n + c->world - 1) / c->world;
		for (size_t k = 0; k < each * c->world; k++)
			whole[k] = -9;
		fill(whole, c, state, &c->param[i]);
		memcpy(f.v + f.n, whole + rank * each, each * sizeof(float));
		f.n += each;
	}
	f.lean = f.n;
	free(whole);
	return f;
}

static void push_flat(struct t_stream *s, const struct t_ds *c, unsigned group,
		      const char *state, unsigned rank, bool lean)
{
	struct flat f = c->stage == 3 ? rank_slices(c, group, state, rank)
				      : whole_group(c, group, state);
	size_t each = c->stage == 3 ? f.n : f.n / c->world;
	size_t lo = c->stage == 3 ? 0 : rank * each;
	size_t n = each;
	int64_t shape;

	if (lean && c->stage != 3)
		n = f.lean <= lo ? 0 : f.lean - lo < each ? f.lean - lo : each;
	if (c->short_flat == rank + 1 && group == 0 && n > 0)
		n--;
	shape = (int64_t)n;
	/* The storage is longer than the tensor, as it is where padding was cut off. */
	t_stream_tensor(s, "FloatStorage", f.v + lo, each, sizeof(float), 0, &shape, 1);
	free(f.v);
}

static void push_states(struct t_stream *s, const struct t_ds *c, unsigned group, unsigned rank)
{
	float step = 12;

	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	if (!c->int_step) {
		t_stream_key(s, "step");
		t_stream_tensor(s, "FloatStorage", &step, 1, sizeof(step), 0, NULL, 0);
	}
	for (size_t i = 1; i < DCP_LEN(states); i++) {
		if (i == 1 && c->no_moment == rank + 1)
			continue;
		t_stream_key(s, states[i]);
		push_flat(s, c, group, states[i], rank, c->elastic);
	}
	t_pk_setitems(&s->pk);
}

static void push_base(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	if (c->elastic) {
		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
		for (unsigned g = 0; g < c->ngroups; g++)
			push_states(s, c, g, rank);
		t_pk_appends(&s->pk);
		return;
	}
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	t_stream_key(s, "state");
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++) {
		t_pk_int(&s->pk, g);
		push_states(s, c, g, rank);
	}
	t_pk_setitems(&s->pk);
	t_stream_key(s, "param_groups");
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++) {
		t_pk_dict(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, "lr");
		t_pk_float(&s->pk, 0.5);
		if (c->int_step) {
			t_stream_key(s, "step");
			t_pk_int(&s->pk, 12);
		}
		t_stream_key(s, "params");
		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
		t_pk_int(&s->pk, g);
		t_pk_appends(&s->pk);
		t_pk_setitems(&s->pk);
	}
	t_pk_appends(&s->pk);
	t_pk_setitems(&s->pk);
}

static void push_gaps(struct t_stream *s, const struct t_ds *c)
{
	t_stream_key(s, "param_alignment_paddings");
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++) {
		size_t at = 0, last = c->nparams;

		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
		for (size_t i = 0; i < c->nparams; i++)
			if (c->param[i].group == g && !c->param[i].frozen)
				last = i;
		for (size_t i = 0; i < c->nparams; i++) {
			size_t gap;

			if (c->param[i].group != g || c->param[i].frozen)
				continue;
			at += numel(&c->param[i]);
			gap = i == last ? 0 : (c->align - at % c->align) % c->align;
			t_pk_int(&s->pk, (int64_t)gap);
			at += gap;
		}
		t_pk_appends(&s->pk);
	}
	t_pk_appends(&s->pk);
}

static void write_optim(const struct t_ds *c, const struct t_dir *d, const char *at,
			unsigned rank)
{
	struct t_stream *s = calloc(1, sizeof(*s));
	int64_t count = c->wrong_count && rank == 1 ? c->wrong_count : c->world;
	char name[160];

	assert_non_null(s);
	t_pk_start(&s->pk);
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	t_stream_key(s, "optimizer_state_dict");
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	if (!c->no_stage) {
		t_stream_key(s, "zero_stage");
		t_pk_global(&s->pk, "deepspeed.runtime.zero.config", "ZeroStageEnum");
		t_pk_mark(&s->pk);
		t_pk_int(&s->pk, c->stage);
		t_pk_tuple(&s->pk);
		t_pk_reduce(&s->pk);
	}
	t_stream_key(s, "partition_count");
	if (c->stage == 3) {
		t_pk_int(&s->pk, count);
	} else {
		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
		for (unsigned g = 0; g < c->ngroups; g++)
			t_pk_int(&s->pk, count);
		t_pk_appends(&s->pk);
	}
	if (c->align)
		push_gaps(s, c);
	t_stream_key(s, c->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
	push_base(s, c, rank);
	t_stream_key(s, c->stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++)
		push_flat(s, c, g, states[0], rank, c->lean || c->elastic);
	t_pk_appends(&s->pk);
	t_pk_setitems(&s->pk);
	t_stream_key(s, "ds_version");
	t_pk_str(&s->pk, "0.0.1");
	t_pk_setitems(&s->pk);
	snprintf(name, sizeof(name), "%s%szero_pp_rank_%u_mp_rank_%02u%soptim_states.pt", at,
		 c->prefix ? c->prefix : "", rank, (unsigned)c->mp, c->old_name ? "" : "_");
	t_stream_put(s, d, name);
	free(s);
}

/* ---- model files ---- */

static void push_size(struct t_stream *s, const struct t_ds_param *p, int64_t more)
{
	int64_t shape[4];

	memcpy(shape, p->shape, sizeof(shape));
	shape[p->ndim ? p->ndim - 1 : 0] += more;
	t_pk_global(&s->pk, "torch", "Size");
	t_pk_mark(&s->pk);
	t_pk_dims(&s->pk, shape, p->ndim);
	t_pk_tuple(&s->pk);
	t_pk_reduce(&s->pk);
}

static void push_ordered(struct t_stream *s)
{
	t_pk_global(&s->pk, "collections", "OrderedDict");
	t_pk_mark(&s->pk);
	t_pk_tuple(&s->pk);
	t_pk_reduce(&s->pk);
	t_pk_mark(&s->pk);
}

static void push_shapes(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	bool wrong = c->wrong_shape == rank + 1;

	t_stream_key(s, "param_shapes");
	if (!c->one_list) {
		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
	} else {
		push_ordered(s);
	}
	for (unsigned g = 0; g < c->ngroups; g++) {
		if (!c->one_list)
			push_ordered(s);
		for (size_t i = 0; i < c->nparams; i++)
			if (c->param[i].group == g && !c->param[i].frozen) {
				t_stream_key(s, c->param[i].name);
				push_size(s, &c->param[i], wrong && i + 1 == c->nparams);
			}
		if (!c->one_list)
			t_pk_setitems(&s->pk);
	}
	if (c->one_list)
		t_pk_setitems(&s->pk);
	else
		t_pk_appends(&s->pk);
}

/* Weights are one storage for a name and what is tied to it; empty in stage 3. */
static void push_module(struct t_stream *s, const struct t_ds *c)
{
	int64_t none = 0;

	t_stream_key(s, "module");
	push_ordered(s);
	for (size_t i = 0; i < c->nparams; i++) {
		const struct t_ds_param *p = &c->param[i];
		float *v = calloc(numel(p) + 1, sizeof(*v));
		char key[16];
		int64_t stride[8], step = 1;

		assert_non_null(v);
		fill(v, c, "module", p);
		for (size_t d = p->ndim; d-- > 0; step *= p->shape[d])
			stride[d] = step;
		snprintf(key, sizeof(key), "%zu", s->n);
		t_stream_key(s, p->name);
		if (c->stage == 3)
			t_stream_tensor(s, "FloatStorage", v, 0, sizeof(*v), 0, &none, 1);
		else
			t_stream_tensor(s, "FloatStorage", v, numel(p), sizeof(*v), 0, p->shape,
					p->ndim);
		if (p->tied) {
			t_stream_key(s, p->tied);
			if (c->stage == 3)
				t_pk_tensor(&s->pk, "FloatStorage", key, 0, 0, &none, &none, 1);
			else
				t_pk_tensor(&s->pk, "FloatStorage", key, (int64_t)numel(p), 0,
					    p->shape, stride, p->ndim);
		}
		free(v);
	}
	t_pk_setitems(&s->pk);
}

static void push_ties(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	t_stream_key(s, "shared_params");
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	for (size_t i = 0; rank == 0 && i < c->nparams; i++)
		if (c->param[i].tied) {
			t_stream_key(s, c->param[i].tied);
			t_stream_key(s, c->param[i].name);
		}
	t_pk_setitems(&s->pk);
}

static void push_fragments(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	t_stream_key(s, "frozen_param_shapes");
	push_ordered(s);
	for (size_t i = 0; i < c->nparams; i++)
		if (c->param[i].frozen) {
			t_stream_key(s, c->param[i].name);
			push_size(s, &c->param[i], 0);
		}
	t_pk_setitems(&s->pk);
	t_stream_key(s, "frozen_param_fragments");
	push_ordered(s);
	for (size_t i = 0; i < c->nparams; i++) {
		size_t n = numel(&c->param[i]), each = (n + c->world - 1) / c->world;
		float *v = calloc(each * c->world + 1, sizeof(*v));
		int64_t shape = (int64_t)each;

		assert_non_null(v);
		fill(v, c, "module", &c->param[i]);
		if (c->param[i].frozen) {
			t_stream_key(s, c->param[i].name);
			t_stream_tensor(s, "FloatStorage", v + rank * each, each, sizeof(*v), 0,
					&shape, 1);
		}
		free(v);
	}
	t_pk_setitems(&s->pk);
}

static void write_model(const struct t_ds *c, const struct t_dir *d, const char *at,
			unsigned rank)
{
	struct t_stream *s = calloc(1, sizeof(*s));
	char name[160];

	assert_non_null(s);
	t_pk_start(&s->pk);
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	push_module(s, c);
	if (c->stage > 0)
		push_shapes(s, c, rank);
	if (!c->no_ties)
		push_ties(s, c, rank);
	if (c->stage == 3)
		push_fragments(s, c, rank);
	if (c->tp) {
		t_stream_key(s, "checkpoint_parallel_dimensions");
		t_pk_dict(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, "tp_degree");
		t_pk_int(&s->pk, c->tp);
		t_stream_key(s, "pp_degree");
		t_pk_int(&s->pk, c->pp);
		t_pk_setitems(&s->pk);
	}
	if (c->buffer) {
		t_stream_key(s, "buffer_names");
		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, c->buffer);
		t_pk_appends(&s->pk);
	}
	if (c->uc_info) {
		t_stream_key(s, "universal_checkpoint_info");
		dcp_buf_add(&s->pk, c->uc_info, c->uc_n);
	}
	t_stream_key(s, "global_steps");
	t_pk_int(&s->pk, 12);
	t_stream_key(s, "rank_note");
	t_pk_int(&s->pk, rank);
	t_pk_setitems(&s->pk);
	if (c->stage == 3)
		snprintf(name, sizeof(name), "%szero_pp_rank_%u_mp_rank_%02u_model_states.pt",
			 at, rank, (unsigned)c->mp);
	else
		snprintf(name, sizeof(name), "%smp_rank_%02u_model_states.pt", at,
			 (unsigned)c->mp);
	t_stream_put(s, d, name);
	free(s);
}

void t_ds_write(const struct t_ds *c, const struct t_dir *d, const char *at)
{
	for (unsigned r = 0; r < (c->stage == 3 ? c->world : 1); r++)
		write_model(c, d, at, r);
	for (unsigned r = 0; c->stage > 0 && r < c->world; r++)
		write_optim(c, d, at, r);
}

/* ---- checking ---- */

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
					       p->name, numel(p));
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
