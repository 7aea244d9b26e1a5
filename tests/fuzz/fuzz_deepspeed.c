/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model file or an optimizer file of any bytes among the others of a sound checkpoint of
 * stage 1 or 3 or of two tensor-parallel ranks, also with experts: no crash, no leak, a reason
 * with everything that is broken, and whatever is told is well formed. The input takes the
 * place of the file that it begins like, in memory: one load an input. To parse all the sound
 * ones takes most of the time, so but for one input in WHOLE, by its length, only the first
 * model file is there, and the others are missing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/model/geometry/tiling.h"
#include "core/origin/dir/dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { WHOLE = 16 };

/* The files that the input takes the place of; the first model file comes first. */
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

/* ---- the sound ones, in memory ---- */

struct file {
	char name[96];
	uint8_t *p;
	size_t n;
};

static struct world {
	struct file file[16];
	size_t n;
} worlds[sizeof(places) / sizeof(*places)];

static void slurp(const char *dir, struct file *out)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, out->name);
	f = fopen(path, "rb");
	out->p = malloc(1 << 16);
	must(f && out->p);
	out->n = fread(out->p, 1, 1 << 16, f);
	must(out->n < 1 << 16);
	fclose(f);
}

static void forget(void)
{
	for (size_t i = 0; i < sizeof(worlds) / sizeof(*worlds); i++)
		for (size_t k = 0; k < worlds[i].n; k++)
			free(worlds[i].file[k].p);
}

static void prepare(void)
{
	atexit(forget);
	for (size_t i = 0; i < sizeof(worlds) / sizeof(*worlds); i++) {
		struct world *w = &worlds[i];
		struct dcp_dir d;
		char path[128];

		snprintf(path, sizeof(path), "tests/golden/%s", places[i].dir);
		must(dcp_dir_open(path, &d, NULL) == 0);
		must(d.n <= sizeof(w->file) / sizeof(*w->file));
		for (; w->n < d.n; w->n++) {
			snprintf(w->file[w->n].name, sizeof(w->file[w->n].name), "%s",
				 d.entries[w->n].name);
			slurp(path, &w->file[w->n]);
		}
		dcp_dir_close(&d);
	}
}

static size_t common(const struct file *f, const uint8_t *data, size_t n)
{
	size_t i = 0;

	while (i < n && i < f->n && data[i] == f->p[i])
		i++;
	return i;
}

/* The place whose file has most in common with the beginning of the input. Where all have as
 * little, any will do. */
static void choose(const uint8_t *data, size_t n, size_t *world, const char **name)
{
	size_t any = n % (2 * sizeof(places) / sizeof(*places)), most = 0;

	*world = any / 2;
	*name = places[any / 2].file[any % 2];
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
		for (size_t k = 0; k < worlds[i].n; k++) {
			const struct file *f = &worlds[i].file[k];
			size_t same = common(f, data, n);

			if (same <= most || (strcmp(f->name, places[i].file[0]) != 0 &&
					     strcmp(f->name, places[i].file[1]) != 0))
				continue;
			most = same;
			*world = i;
			*name = f->name;
		}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
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
	struct dcp_archive *a;
	const char *name;
	size_t world;
	int rc;

	if (!worlds[0].n)
		prepare();
	choose(data, n, &world, &name);
	must(dcp_archive_create(&a) == 0);
	for (size_t k = 0; k < worlds[world].n; k++) {
		const struct file *f = &worlds[world].file[k];
		bool mine = strcmp(f->name, name) == 0;
		struct dcp_input file = {
			.src = dcp_source_mem(mine ? data : f->p, mine ? n : f->n),
		};

		if (mine || n % WHOLE == 0 || strcmp(f->name, places[world].file[0]) == 0)
			must(dcp_archive_add_file(a, &file, f->name, &err) == 0);
	}
	must(dcp_dir_of_archive(a, "fuzz", &dir, &err) == 0);
	rc = dcp_format_deepspeed.load(&in, &err);
	must(rc == 0 || (rc == err.code && err.msg[0]));
	dcp_dir_close(&dir);
	dcp_archive_close(a);
	return 0;
}
