/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/save/ranks/ranks_int.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/origin/origin.h"
#include "tools/load/error.h"
#include "tools/save/save_int.h"

/* Steps, in which ranks work separately: when a rank fails, the others are asked to stop. */

static int run_step(void *ctx)
{
	struct dcpsave *s = ctx;

	return dcp_err_say(&s->step_err, s->step_fn(s, &s->step_err));
}

/* Start @fn in a thread; save_step_end() waits until the threads of all ranks have ended. When a
 * rank fails, the others are asked to stop, and all ranks get its error. */
static void save_step_start(struct dcpsave *s, save_step_fn fn)
{
	s->step_fn = fn;
	s->step_err = (struct dcp_err){ 0 };
	s->stop = false;
	load_step_start(&s->step, run_step, s);
}

static void save_step_drop(struct dcpsave *s);

static int save_step_end(struct dcpsave *s, struct dcpload_error *err)
{
	int timeout = (int)s->config.timeout_ms;
	int rc = load_step_wait(&s->step, s->comm, true, timeout, err);

	save_step_drop(s);
	if (rc < 0)
		return rc;
	rc = load_fail_err(err, s->step.rc, &s->step_err);
	return load_agree(s->comm, rc, err, timeout);
}

static int save_step(struct dcpsave *s, save_step_fn fn, struct dcpload_error *err)
{
	save_step_start(s, fn);
	return save_step_end(s, err);
}

/* Not collective: no rank waits for it any more. */
static void save_step_drop(struct dcpsave *s)
{
	__atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
	load_step_join(&s->step);
}

/* Called when all data is written: sends the sums of all ranks to rank 0, which completes the
 * checkpoint. */

/* The sums go to all ranks, because communicators have no other function. */
static int share_sums(struct dcpsave *s, struct dcpload_error *err)
{
	int timeout = (int)s->config.timeout_ms;
	dcp_auto_buf struct dcp_buf mine = DCP_BUF_INIT;
	struct load_blobs b;
	int rc =
		load_agree(s->comm, load_say(err, save_put_sums(s->save, &mine)), err, timeout);

	if (rc == 0)
		rc = load_gather(s->comm, mine.p, mine.n, &b, err, timeout);
	if (rc < 0)
		return rc;
	for (uint32_t r = 0; rc == 0 && save_leads(s->save) && r < s->comm->ranks; r++)
		rc = save_take_sums(s->save, b.at[r], b.n[r]);
	load_blobs_free(&b);
	return load_agree(s->comm, load_say(err, rc), err, timeout);
}

static int complete_save(struct dcpsave *s, struct dcp_err *err)
{
	int rc = save_makes_files(s) ? save_seal(s->save, err) : 0;

	return rc == 0 && save_makes_files(s) ? save_publish(s->save, err) : rc;
}

static int save_finish(struct dcpsave *s, struct dcpload_error *err)
{
	int rc = s->any_placed ? save_step(s, save_check_placed, err) : 0;

	if (rc == 0 && s->comm->ranks > 1 && !s->gathers)
		rc = share_sums(s, err);
	return rc == 0 ? save_step(s, complete_save, err) : rc;
}

#define TIMEOUT_MS 60000
#define MAX_SHARD 5000000000u
#define MEMORY ((size_t)8 << 30) /* keys, shapes and JSON of all ranks */

uint32_t dcpsave_abi(void)
{
	return DCPSAVE_ABI;
}

const char *dcpsave_release(void)
{
	return DCP_RELEASE;
}

int dcpsave_format_at(uint64_t i, const char **name, const char **what)
{
	size_t n = 0;

	while (dcp_write_formats[n])
		n++;
	if (i >= n)
		return -ENOENT;
	*name = dcp_write_formats[i]->name;
	if (what)
		*what = dcp_write_formats[i]->what;
	return 0;
}

/* ---- opening ---- */

static int choose_format(struct dcpsave *s, struct dcpload_error *err)
{
	const char *slash = strrchr(s->path, '/');
	dcp_auto_buf struct dcp_buf names = DCP_BUF_INIT;
	const struct dcp_write_format *like;

	s->format = s->config.format ? dcp_write_format(s->config.format) : NULL;
	if (!s->format) {
		for (size_t i = 0; dcp_write_formats[i]; i++)
			dcp_buf_printf(&names, "%s%s", i ? ", " : "",
				       dcp_write_formats[i]->name);
		return load_fail(err, -EINVAL, "no format is called \"%s\"; there are %s",
				 s->config.format ? s->config.format : "", names.p);
	}
	if (s->config.flags & DCPSAVE_FILE ? s->format->extensions != NULL
					   : dcp_write_is_file_of(s->format, s->path))
		s->file = slash ? slash + 1 : s->path;
	if (s->config.flags & DCPSAVE_FILE && !s->file)
		return load_fail(err, -EINVAL, "%s is not a format of one file",
				 s->format->name);
	like = dcp_write_format_of(s->path);
	if (like && !s->file)
		return load_fail(
			err, -EINVAL,
			"%s is called like a file of %s; %s writes a directory (%s/ makes "
			"one of that name)",
			s->path, like->name, s->format->name, s->path);
	return 0;
}

/* Collective. Compare the options that all ranks must give alike. */
static int compare_ranks(const struct dcpsave *s, struct dcpload_error *err)
{
	static const struct {
		uint32_t flag;
		const char *name;
	} flags[] = { { DCPSAVE_REPLACE, "DCPSAVE_REPLACE" },
		      { DCPSAVE_ASYNC, "DCPSAVE_ASYNC" },
		      { DCPSAVE_PARTIAL, "DCPSAVE_PARTIAL" },
		      { DCPSAVE_SAME_KEYS, "DCPSAVE_SAME_KEYS" },
		      { DCPSAVE_FILE, "DCPSAVE_FILE" },
		      { DCPSAVE_DIRECT, "DCPSAVE_DIRECT" },
		      { DCPSAVE_OVERWRITE, "DCPSAVE_OVERWRITE" } };
	const struct dcpsave_config *c = &s->config;
	dcp_auto_buf struct dcp_buf gathers = DCP_BUF_INIT;
	char shard[24], grouped[24], protocol[16];
	struct load_alike own[7 + DCP_LEN(flags)] = {
		{ "the release of dcpfs", DCP_RELEASE },
		{ "dcpsave_config.format", s->format->name },
		{ "the name of the file", s->file && !s->gathers ? s->file : "" },
		{ "dcpsave_config.max_shard", shard },
		{ "dcpsave_config.max_grouped", grouped },
		{ "dcpsave_config.protocol", protocol },
	};

	snprintf(shard, sizeof(shard), "%llu", (unsigned long long)c->max_shard);
	snprintf(grouped, sizeof(grouped), "%llu", (unsigned long long)c->max_grouped);
	snprintf(protocol, sizeof(protocol), "%u", c->protocol);
	for (uint32_t r = 0; s->gathers && r < s->comm->ranks; r++)
		if (s->gathers[r])
			dcp_buf_printf(&gathers, "%s%u", gathers.n ? " " : "", r);
	own[6] = (struct load_alike){ "dcpsave_config.gather_to", gathers.p ? gathers.p : "" };
	for (size_t i = 0; i < DCP_LEN(flags); i++)
		own[7 + i] =
			(struct load_alike){ flags[i].name,
					     c->flags & flags[i].flag ? "set" : "not set" };
	return load_compare(s->comm, own, DCP_LEN(own), err, (int)c->timeout_ms);
}

static int choose_gathering(struct dcpsave *s, struct dcpload_error *err)
{
	const struct dcpsave_config *c = &s->config;
	bool *gathers = dcp_arena_calloc(&s->arena, s->comm->ranks, sizeof(*gathers));

	if (!c->gather_to || !c->ngather)
		return 0;
	if (!gathers)
		return load_say(err, -ENOMEM);
	for (uint64_t i = 0; i < c->ngather; i++) {
		if (c->gather_to[i] >= s->comm->ranks)
			return load_fail(err, -EINVAL,
					 "there is no rank %u to gather to, only 0 to %u",
					 c->gather_to[i], s->comm->ranks - 1);
		gathers[c->gather_to[i]] = true;
	}
	if (dcp_origin_of(s->path) != &dcp_origin_local)
		return load_fail(err, -ENOTSUP,
				 "%s: tensors are gathered into a file of a directory, not "
				 "into a bucket",
				 s->path);
	if (!s->file || s->format->takes & DCP_WRITE_BOXES || c->flags & DCPSAVE_ASYNC)
		return load_fail(err, -EINVAL,
				 "tensors can be gathered only into one file, not %s, and "
				 "not asynchronously",
				 s->format->name);
	s->gathers = gathers;
	return 0;
}

static int fill_save(struct dcpsave *s, const char *path, const struct dcpsave_config *config,
		     struct dcpload_error *err)
{
	int rc;

	if (config->size < offsetof(struct dcpsave_config, gather_to))
		return load_fail(err, -EINVAL, "the config's size is %u, expected %zu",
				 config->size, sizeof(*config));
	memcpy(&s->config, config, DCP_MIN(config->size, sizeof(*config)));
	if (!s->config.timeout_ms)
		s->config.timeout_ms = TIMEOUT_MS;
	if (!s->config.max_shard)
		s->config.max_shard = MAX_SHARD;
	s->path = dcp_arena_strdup(&s->arena, path);
	rc = s->path ? choose_format(s, err) : load_say(err, -ENOMEM);
	if (rc == 0)
		rc = save_device_open(s->config.device, &s->device, err);
	return rc == 0 ? choose_gathering(s, err) : rc;
}

int dcpsave_open(const struct dcpload_comm *comm, const char *path,
		 const struct dcpsave_config *config, struct dcpsave **out,
		 struct dcpload_error *err)
{
	struct dcpsave *s;
	int rc;

	load_servers();
	if (!comm)
		comm = &load_alone;
	rc = load_comm_check(comm, err);
	if (rc < 0)
		return rc;
	s = calloc(1, sizeof(*s));
	if (s) {
		s->comm = comm;
		s->report.ranks = comm->ranks;
		dcp_arena_init(&s->arena, MEMORY);
		load_step_init(&s->step);
	}
	rc = s ? fill_save(s, path, config, err) : load_say(err, -ENOMEM);
	rc = load_agree(comm, rc, err,
			s && s->config.timeout_ms ? (int)s->config.timeout_ms : TIMEOUT_MS);
	if (rc == 0)
		rc = compare_ranks(s, err);
	if (rc < 0) {
		dcpsave_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

/* Remove everything of a save that was not completed. */
static void drop_save(struct dcpsave *s)
{
	save_step_drop(s);
	save_destroy(s->save);
	s->save = NULL;
	for (size_t i = 0; i < save_ngiven(s); i++) {
		free(save_given(s)[i].copy);
		save_given(s)[i].copy = NULL;
	}
}

void dcpsave_close(struct dcpsave *s)
{
	if (!s)
		return;
	drop_save(s);
	save_device_close(s->device);
	dcp_buf_finish(&s->tensors);
	dcp_buf_finish(&s->set_objects);
	dcp_buf_finish(&s->given);
	dcp_buf_finish(&s->objects);
	dcp_buf_finish(&s->left);
	dcp_buf_finish(&s->placed);
	pthread_mutex_destroy(&s->step.lock);
	pthread_cond_destroy(&s->step.ended);
	dcp_arena_finish(&s->arena);
	free(s);
}

/* ---- in order ---- */

static int expect_state(const struct dcpsave *s, enum save_state state, const char *what,
			struct dcpload_error *err)
{
	if (s->state == state)
		return 0;
	if (s->state == SAVE_FAILED)
		return load_fail(err, -ECANCELED, "%s: saving has failed before", s->path);
	return load_fail(err, -EINVAL, "%s: %s is called out of order", s->path, what);
}

/* Set @state, or after a failure end the save and free the files and copies of this rank at
 * once. */
static int end_state(struct dcpsave *s, int rc, enum save_state state)
{
	s->state = rc < 0 ? SAVE_FAILED : state;
	if (rc < 0 || state == SAVE_WRITTEN)
		drop_save(s);
	return rc;
}

static int create_save(struct dcpsave *s, struct dcp_err *err)
{
	uint32_t ranks = s->comm->ranks;
	const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	const struct save_opts how = {
		.out = s->path,
		.file = s->file != NULL,
		.force = s->config.flags & DCPSAVE_REPLACE,
		.overwrite = s->file && s->config.flags & DCPSAVE_OVERWRITE,
		.jobs = s->config.threads ? s->config.threads
					  : (unsigned)DCP_MIN(DCP_MAX(cpus / ranks, 1), 8),
		.rank = s->gathers ? 0 : s->comm->rank,
		.ranks = ranks > 1 && !s->gathers ? ranks : 0,
		.by_owner = true,
		.withheld = s->config.withheld & 0777,
		.direct = s->config.flags & DCPSAVE_DIRECT,
		.stop = s->config.stop,
	};

	return save_create(&how, &s->save, err);
}

static int create_first(struct dcpsave *s, struct dcp_err *err)
{
	return save_makes_files(s) ? create_save(s, err) : 0;
}

static int create_others(struct dcpsave *s, struct dcp_err *err)
{
	return s->gathers || s->comm->rank == 0 ? 0 : create_save(s, err);
}

/* For a single process, which has all the data. */
static int count_high(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n,
		      uint64_t *count, struct dcp_err *err)
{
	const struct dcpsave *s = ctx;
	size_t number = s->from[s->first[tensor] + part];
	dcp_auto_free unsigned char *buf = malloc(n);
	int rc;

	*count = 0;
	if (number == SIZE_MAX) /* given in several regions */
		return dcp_fail(err, -EINVAL,
				"protocol 2 needs each tensor in one region: give 3 or 4");
	rc = buf ? save_given_take(&save_given(s)[number], 0, off, buf, n, err) : -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++)
		*count += buf[i] >= 0x80;
	return dcp_err_say(err, rc);
}

static int make_files(struct dcpsave *s, struct dcp_err *err)
{
	const struct dcp_write_opts opt = {
		.name = s->file,
		.max_shard = s->config.max_shard == UINT64_MAX ? 0 : s->config.max_shard,
		.protocol = s->config.protocol,
	};

	if (s->comm->ranks == 1) {
		s->set.high = count_high;
		s->set.ctx = s;
	}
	return s->save ? save_plan(s->save, s->format, &s->set, &opt, err) : 0;
}

static int plan_save(struct dcpsave *s, struct dcpload_error *err)
{
	struct save_counts counts = { 0 };
	int rc = save_agree_set(s, err);

	if (rc == 0)
		rc = save_step(s, create_first, err);
	if (rc == 0)
		rc = save_step(s, create_others, err);
	if (rc == 0)
		rc = save_step(s, make_files, err);
	if (rc < 0)
		return rc;
	if (s->save)
		save_count(s->save, &counts);
	s->report.files = counts.files;
	s->report.bytes = counts.bytes;
	s->report.tensors = s->set.ntensors;
	s->report.objects = s->set.nobjects;
	return 0;
}

int dcpsave_plan(struct dcpsave *s, struct dcpload_error *err)
{
	uint64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc = expect_state(s, SAVE_GIVING, "dcpsave_plan()", err);

	if (rc < 0)
		return rc;
	rc = end_state(s, plan_save(s, err), SAVE_PLANNED);
	s->report.plan_ns = dcp_now_ns(CLOCK_MONOTONIC) - start;
	return rc;
}

static void count_written(struct dcpsave *s)
{
	struct save_counts counts = { 0 };

	if (s->save)
		save_count(s->save, &counts);
	s->report.written += counts.written;
}

static int finish_save(struct dcpsave *s, struct dcpload_error *err)
{
	int rc = save_step_end(s, err);

	count_written(s);
	return rc == 0 ? save_finish(s, err) : rc;
}

int dcpsave_write(struct dcpsave *s, struct dcpload_error *err)
{
	uint64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	bool async = s->config.flags & DCPSAVE_ASYNC;
	int rc = expect_state(s, SAVE_PLANNED, "dcpsave_write()", err);

	if (rc < 0)
		return rc;
	if (async) {
		s->early = true;
		rc = save_step(s, save_copy_shares, err);
		if (rc == 0)
			rc = save_step(s, save_shares, err);
		s->early = false;
	}
	if (s->gathers)
		rc = save_gather(s, err);
	if (rc == 0) {
		s->state = SAVE_WRITING;
		save_step_start(s, save_shares);
		if (!async)
			rc = finish_save(s, err);
	}
	if (rc < 0 || !async)
		end_state(s, rc, SAVE_WRITTEN);
	s->report.write_ns = dcp_now_ns(CLOCK_MONOTONIC) - start;
	return rc;
}

int dcpsave_wait(struct dcpsave *s, struct dcpload_error *err)
{
	uint64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	int rc;

	if (s->state == SAVE_WRITTEN)
		return 0;
	rc = expect_state(s, SAVE_WRITING, "dcpsave_wait()", err);
	if (rc < 0)
		return rc;
	rc = end_state(s, finish_save(s, err), SAVE_WRITTEN);
	s->report.wait_ns = dcp_now_ns(CLOCK_MONOTONIC) - start;
	return rc;
}

int dcpsave_poll(struct dcpsave *s)
{
	struct load_step *step = &s->step;
	bool done;

	pthread_mutex_lock(&step->lock);
	done = s->state != SAVE_WRITING || step->done;
	pthread_mutex_unlock(&step->lock);
	return done;
}

/* ---- what the caller asks ---- */

int dcpsave_left(const struct dcpsave *s, uint64_t i, const char **key, const char **why)
{
	if (i >= DCP_NITEMS(s->left, struct save_left))
		return -ENOENT;
	*key = DCP_ITEMS(s->left, struct save_left)[i].key;
	if (why)
		*why = DCP_ITEMS(s->left, struct save_left)[i].why;
	return 0;
}

int dcpsave_report(const struct dcpsave *s, struct dcpsave_report *out)
{
	uint32_t size = DCP_MIN(out->size, (uint32_t)sizeof(*out));

	memcpy(out, &s->report, size);
	out->size = size;
	return 0;
}
