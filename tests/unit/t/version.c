/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/version.h"

#include "core/base/arena.h"
#include "core/store/index/index.h"
#include "tests/unit/t.h"

static void hear_log(void *ctx, enum dcp_log_level level, const char *line)
{
	struct t_version *p = ctx;
	size_t n = strlen(p->said);

	if (level <= DCP_LOG_WARN) {
		snprintf(p->said + n, sizeof(p->said) - n, "%s\n", line);
		p->warnings++;
	}
}

int t_version_setup(void **state)
{
	struct t_version *p = calloc(1, sizeof(*p));

	t_dir_make(&p->dir, "test_version");
	snprintf(p->source, sizeof(p->source), "%s/run", p->dir.root);
	snprintf(p->cache, sizeof(p->cache), "%s/cache/dcpfs", p->dir.root);
	t_dir_put(&p->dir, "run/step-1/a.shard", NULL, 100);
	t_dir_put(&p->dir, "run/step-1/b.shard", NULL, 100);
	t_dir_text(&p->dir, "run/step-1/COMMIT",
		   "x a.shard 0 60\ny b.shard 60 40\nz gone.shard 0 4\n");
	p->log = (struct dcp_log){ DCP_LOG_DEBUG, hear_log, p };
	p->opts = (struct dcp_store_opts){ .cache_dir = p->cache, .log = &p->log };
	t_fake = (struct t_fake){ 0 };
	*state = p;
	return 0;
}

int t_version_teardown(void **state)
{
	struct t_version *p = *state;

	t_dir_remove(&p->dir);
	free(p);
	return 0;
}

const struct dcp_found t_version_step_1 = {
	.name = "step-1", .where = "step-1", .format = &t_fake_format, .complete = true
};

struct dcp_version *t_version_open(struct t_version *p)
{
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	if (dcp_version_open(p->source, &t_version_step_1, &p->opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	return v;
}

void t_version_check(struct dcp_version *v)
{
	struct dcp_index *ix = dcp_version_index(v);
	struct dcp_arena arena;
	struct dcp_tensor t;
	struct dcp_row row;

	dcp_arena_init(&arena, 1 << 16);
	assert_string_equal(dcp_version_name(v), "step-1");
	assert_ptr_equal(dcp_version_format(v), &t_fake_format);
	assert_string_equal(dcp_index_meta(ix, "format"), "fake");
	assert_string_equal(dcp_index_meta(ix, "version"), "step-1");
	assert_int_equal(dcp_index_counts(ix)->tensors, 3);
	assert_int_equal(dcp_index_counts(ix)->broken, 1);
	assert_int_equal(dcp_index_by_name(ix, DCP_ROW_TENSOR, "y", &arena, &row), 0);
	assert_int_equal(dcp_index_tensor(ix, row.id, &arena, &t, NULL), 0);
	assert_int_equal(t.pieces[0].off, 60);
	assert_non_null(dcp_version_files(v));
	assert_true(dcp_version_place(v)->fd >= 0);
	assert_int_equal(dcp_version_check(v, NULL), 0);
	dcp_arena_finish(&arena);
}

bool t_version_opens_built(struct t_version *p)
{
	struct dcp_version *v = t_version_open(p);
	bool built = dcp_version_was_built(v);

	t_version_check(v);
	dcp_version_close(v);
	return built;
}

const char *t_version_index_path(struct t_version *p)
{
	struct dcp_version *v = t_version_open(p);
	static char path[512];

	assert_non_null(dcp_version_index_path(v));
	snprintf(path, sizeof(path), "%s", dcp_version_index_path(v));
	dcp_version_close(v);
	return path;
}

void t_version_let_time_pass(struct t_version *p)
{
	t_sql(t_version_index_path(p), "UPDATE meta SET value = value + 10000000000 "
				       "WHERE name = 'created_ns'");
}
