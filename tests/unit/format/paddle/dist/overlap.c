/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces that overlap: Paddle's own choice (golden/paddle-overlaps.txt). Pieces that Paddle
 * recorded wrongly: said so, and the rest can be read.
 * covers: key
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/paddle.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

enum { MOST = 8, ELEMENTS = 5 * 5 * 5 };

static void load(const char *path, struct dcp_dir *dir, struct t_sink *s)
{
	struct dcp_load in = { .dir = dir, .sink = &s->sink };
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_dir_open(path, dir, NULL), 0);
	t_sink_init(s, dir);
	if (dcp_format_paddle_dist.load(&in, &err) < 0)
		fail_msg("%s", err.msg);
}

static void check(const struct t_sink *s, const char *key, const float *want, size_t n)
{
	struct dcp_err err = { 0 };
	size_t got;
	char *bytes = t_sink_read(s, t_sink_tensor(s, key), &got, &err);

	if (!bytes)
		fail_msg("%s: %s", key, err.msg);
	assert_int_equal(got, n * sizeof(*want));
	assert_memory_equal(bytes, want, got);
	free(bytes);
}

static void refused(const struct t_sink *s, const char *key, const char *says)
{
	const char *error = t_sink_tensor(s, key)->error;

	if (!error || !strstr(error, says))
		fail_msg("%s: \"%s\" does not say \"%s\"", key, error ? error : "", says);
}

/* ---- the last piece listed ---- */

/* "2x3" or "2,3" */
static uint32_t numbers(const char **p, int64_t *out)
{
	uint32_t n = 0;
	char *end;

	do {
		assert_true(n < T_PD_NDIM);
		out[n++] = strtoll(*p, &end, 10);
		assert_true(end > *p);
		*p = end + (*end == 'x' || *end == ',');
	} while ((*p)[-1] == 'x' || (*p)[-1] == ',');
	return n;
}

/* Each piece's elements are its number, in a file of its own. */
static void put_piece(const struct t_dir *dir, const struct t_pd_piece *p, size_t number)
{
	struct dcp_buf b = DCP_BUF_INIT;
	float v[ELEMENTS];
	size_t n = 1;

	for (uint32_t d = 0; d < p->ndim; d++)
		n *= (size_t)p->len[d];
	for (size_t i = 0; i < n; i++)
		v[i] = (float)number;
	t_paddle_open(&b, 4);
	t_paddle_array(&b, "w", "f4", p->ndim, p->len, v, n * sizeof(*v));
	t_paddle_close(&b);
	t_dir_put(dir, p->file, b.p, b.n);
	dcp_buf_finish(&b);
}

static size_t parse(const char *line, struct t_pd_piece *p, char files[MOST][16], float *want)
{
	int64_t shape[T_PD_NDIM] = { 0 };
	const char *at = line + 2;
	size_t n = 0, elements = 0;
	uint32_t ndim;

	at += strcspn(at, " ") + 1; /* the version */
	ndim = numbers(&at, shape);
	for (at++; strchr(at, '+'); at++, n++) {
		assert_true(n < MOST);
		snprintf(files[n], sizeof(files[n]), "%zu_0.distcp", MOST - n);
		p[n] = (struct t_pd_piece){ .key = "w",
					    .dtype = "float32",
					    .ndim = ndim,
					    .file = files[n],
					    .replica = -1 };
		memcpy(p[n].shape, shape, sizeof(shape));
		assert_int_equal(numbers(&at, p[n].lo), ndim);
		assert_int_equal(*at++, '+');
		assert_int_equal(numbers(&at, p[n].len), ndim);
	}
	for (; *at >= '0' && *at <= '9'; at++)
		want[elements++] = (float)(*at - '0');
	assert_true(elements > 0 && elements <= ELEMENTS);
	return n;
}

/* "A 3.0 6 0+4 2+4 001111": what wrote it, the shape, boxes as listed, whose elements count. */
static bool check_line(const char *line)
{
	struct dcp_buf meta = DCP_BUF_INIT;
	struct t_pd_piece p[MOST];
	char files[MOST][16];
	float want[ELEMENTS];
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;
	size_t n;

	t_case(line);
	t_dir_make(&tree, "paddle");
	n = parse(line, p, files, want);
	for (size_t i = 0; i < n; i++)
		put_piece(&tree, &p[i], i);
	t_paddle_meta(&meta, line[0], p, n);
	t_dir_put(&tree, "0.metadata", meta.p, meta.n);
	load(tree.root, &dir, &s);
	check(&s, "w", want, strlen(strrchr(line, ' ')) - 1);
	if (n > 1)
		assert_non_null(
			strstr(t_sink_fact(&s, "overlaps"), "1 key overlap, the first is w: "));
	else
		assert_null(t_sink_fact(&s, "overlaps"));
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
	dcp_buf_finish(&meta);
	return n > 1;
}

static void overlaps_agree_with_paddle(void **state)
{
	FILE *f = fopen("tests/golden/paddle-overlaps.txt", "r");
	unsigned lines = 0, overlaps = 0;
	char line[1024];

	(void)state;
	assert_non_null(f);
	for (; fgets(line, sizeof(line), f); lines++) {
		line[strcspn(line, "\n")] = '\0';
		overlaps += check_line(line);
	}
	fclose(f);
	assert_int_equal(lines, 120);
	assert_true(overlaps > 100);
}

/* Metadata of several ranks may list a box again, behind one that overlaps it. */
static void boxes_may_be_listed_again(void **state)
{
	(void)state;
	assert_true(check_line("A 3.0 6 0+4 2+4 0+4 222211"));
	assert_true(check_line("C 3.3 6 2+4 0+4 2+4 112222"));
}

/* ---- recorded wrongly ---- */

/* What 3.0 wrote: two mesh dimensions cut one of the tensor; ranks' own tensors of one name. */
static void misrecorded_boxes_are_refused(void **state)
{
	float want[24];
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	for (int i = 0; i < 24; i++)
		want[i] = (float)i;
	load("tests/golden/paddle-dist-30/misrecorded", &dir, &s);
	check(&s, "fine", want, 24);
	refused(&s, "twice",
		"0.metadata says its piece [0:4, 0:3] is an array of shape [4, 3], "
		"0_0.distcp holds [2, 3]: several mesh dimensions cut dimension 0, of "
		"which Paddle 3.0 records the last one only");
	refused(&s, "shapes",
		"0.metadata says its piece [0:3] is an array of shape [3], 0_0.distcp "
		"holds [2]: ranks saved tensors of different shapes under this key");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

/* One piece of "w", a box of 2x3 at [0, 0] of which the file holds something else. */
static void overlap_faults_are_reported(void **state)
{
	static const struct {
		char generation;
		uint32_t ndim;
		int64_t stored[2];
		const char *says;
	} rows[] = {
		{ 'A', 2, { 2, 1 }, "holds [2, 1]: several mesh dimensions cut dimension 1" },
		{ 'B', 2, { 1, 2 }, "holds [1, 2]: several mesh dimensions cut dimension 0" },
		{ 'A', 2, { 3, 2 }, "holds [3, 2]: metadata and data are of different saves" },
		{ 'B', 2, { 2, 4 }, "holds [2, 4]: metadata and data are of different saves" },
		{ 'B', 1, { 6 }, "holds [6]: metadata and data are of different saves" },
		{ 'C', 2, { 1, 3 }, "holds [1, 3]: stale metadata, the data was saved again" },
		{ 'C', 1, { 6 }, "holds [6]: stale metadata, the data was saved again" },
	};
	static const float v[8] = { 0 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct t_pd_piece p = { .key = "w",
					.dtype = "float32",
					.ndim = 2,
					.len = { 2, 3 },
					.shape = { 2, 3 },
					.file = "0_0.distcp",
					.replica = -1 };
		struct dcp_buf b = DCP_BUF_INIT;
		const int64_t *n = rows[i].stored;
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;

		t_case(rows[i].says);
		t_dir_make(&tree, "paddle");
		t_paddle_meta(&b, rows[i].generation, &p, 1);
		t_dir_put(&tree, "0.metadata", b.p, b.n);
		dcp_buf_reset(&b);
		t_paddle_open(&b, 4);
		t_paddle_array(&b, "w", "f4", rows[i].ndim, n, v,
			       sizeof(*v) * (size_t)(n[0] * (rows[i].ndim > 1 ? n[1] : 1)));
		t_paddle_close(&b);
		t_dir_put(&tree, "0_0.distcp", b.p, b.n);
		load(tree.root, &dir, &s);
		refused(&s, "w", rows[i].says);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
		dcp_buf_finish(&b);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(overlaps_agree_with_paddle),
		cmocka_unit_test(boxes_may_be_listed_again),
		cmocka_unit_test(misrecorded_boxes_are_refused),
		cmocka_unit_test(overlap_faults_are_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
