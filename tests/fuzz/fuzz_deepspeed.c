/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model file and an optimizer file of any bytes among the others of sound checkpoints of
 * stages 1 and 3 and of two tensor-parallel ranks, also with experts: no crash, no leak, a
 * reason with everything that is broken, and whatever is told is well formed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/model/geometry/tiling.h"
#include "core/parse/dir/dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The files that the input takes the place of. */
static const struct {
	const char *dir;
	const char *file[2];
} places[] = {
	{ "deepspeed-z1/ckpt/global_step10",
	  { "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" } },
	{ "deepspeed-z3/ckpt/global_step10",
	  { "zero_pp_rank_1_mp_rank_00_model_states.pt",
	    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt" } },
	{ "deepspeed-tp/ckpt/global_step1",
	  { "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt" } },
	{ "deepspeed-autoep-tp/ckpt/global_step2",
	  { "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" } },
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	uint32_t *count = ctx;

	must(name[0] && name[0] != '/');
	*number = (*count)++;
	return 0;
}

static void check_path(const char *const *path, size_t n)
{
	must(n > 0);
	for (size_t i = 0; i < n; i++)
		must(strlen(path[i]) < SIZE_MAX);
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	const uint32_t *count = ctx;
	struct dcp_arena arena;
	struct dcp_tiling tl;
	uint64_t nbytes;

	must(t->key && t->dtype_name && t->ndim <= DCP_MAX_NDIM);
	check_path(t->path, t->npath);
	must(!t->error || (t->error[0] && t->npieces == 0));
	for (size_t i = 0; i < t->npieces; i++)
		must(t->pieces[i].file < *count && t->pieces[i].run_n > 0);
	if (t->error || !dcp_tensor_nbytes(t, &nbytes))
		return 0;
	dcp_arena_init(&arena, 1 << 20);
	(void)dcp_tiling_init(&tl, t, &arena, NULL);
	dcp_arena_finish(&arena);
	return 0;
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	(void)ctx;
	must(o->key && o->type && !o->json == (o->error && o->error[0]));
	check_path(o->path, o->npath);
	return 0;
}

static int on_meta(void *ctx, const char *name, const char *value)
{
	(void)ctx;
	must(name[0] && value[0]);
	return 0;
}

/* ---- copies of the sound ones ---- */

static char root[96];

static void put(const char *to, const uint8_t *data, size_t n)
{
	int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	must(fd >= 0 && write(fd, data, n) == (ssize_t)n);
	close(fd);
}

static uint8_t *slurp(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	uint8_t *p = malloc(1 << 20);

	must(f && p);
	*n = fread(p, 1, 1 << 20, f);
	fclose(f);
	return p;
}

static void forget(void)
{
	char command[160];

	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	must(system(command) == 0);
}

static void prepare(void)
{
	const char *tmp = getenv("TMPDIR");
	char path[512];

	snprintf(root, sizeof(root), "%.60s/fuzz_deepspeed.XXXXXX", tmp ? tmp : "/tmp");
	must(mkdtemp(root) != NULL);
	atexit(forget);
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		struct dcp_dir d;

		snprintf(path, sizeof(path), "%s/%zu", root, i);
		must(mkdir(path, 0700) == 0);
		snprintf(path, sizeof(path), "tests/golden/%s", places[i].dir);
		must(dcp_dir_open(path, &d, NULL) == 0);
		for (size_t k = 0; k < d.n; k++) {
			uint8_t *p;
			size_t n;

			snprintf(path, sizeof(path), "tests/golden/%s/%s", places[i].dir,
				 d.entries[k].name);
			p = slurp(path, &n);
			snprintf(path, sizeof(path), "%s/%zu/%s", root, i, d.entries[k].name);
			put(path, p, n);
			free(p);
		}
		dcp_dir_close(&d);
	}
}

static void load(const char *path)
{
	uint32_t count = 0;
	struct dcp_sink sink = { .file = on_file,
				 .tensor = on_tensor,
				 .object = on_object,
				 .meta = on_meta,
				 .ctx = &count };
	struct dcp_dir dir;
	struct dcp_load in = { .dir = &dir, .sink = &sink };
	struct dcp_err err = { 0 };
	int rc;

	must(dcp_dir_open(path, &dir, NULL) == 0);
	rc = dcp_format_deepspeed.load(&in, &err);
	must(rc == 0 || (rc == err.code && err.msg[0]));
	dcp_dir_close(&dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	char dir[128], path[256];

	if (!root[0])
		prepare();
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
		for (size_t k = 0; k < 2; k++) {
			uint8_t *sound;
			size_t was;

			snprintf(dir, sizeof(dir), "%s/%zu", root, i);
			snprintf(path, sizeof(path), "%s/%s", dir, places[i].file[k]);
			sound = slurp(path, &was);
			put(path, data, n);
			load(dir);
			put(path, sound, was);
			free(sound);
		}
	return 0;
}
