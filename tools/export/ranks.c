/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that share an export: each writes an equal share of the bytes, and rank 0 makes the
 * files, completes them and gives OUT its name. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hf/hf.h"
#include "core/store/index/index.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "tools/export/export.h"
#include "tools/load/comm/comm.h"
#include "tools/load/load.h"
#include "tools/opt.h"

enum cmd_exit export_exit_of_comm(int rc)
{
	return rc == -EINVAL || rc == -ENOENT || rc == -EPROTO ? CMD_USAGE : cmd_exit_of(rc);
}

int export_open_comm(int comm, uint64_t timeout_s, bool insecure, struct dcpload_comm **out,
		     struct dcpload_error *err)
{
	const struct dcpload_comm_config config = {
		.size = sizeof(config),
		.flags = insecure ? DCPLOAD_COMM_INSECURE : 0,
		.timeout_ms = (uint32_t)(timeout_s * 1000),
	};

	return dcpload_comm_open_as(export_comms[comm], &config, out, err);
}

int export_compare_options(const struct dcpload_comm *comm, const struct opt *table,
			   const void *values, uint64_t timeout_s, struct dcpload_error *err)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)64 << 20);
	dcp_auto_buf struct dcp_buf own = DCP_BUF_INIT;
	int timeout_ms = export_timeout(timeout_s), rc;

	for (; table->name; table++) {
		dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT, value = DCP_BUF_INIT;
		struct load_alike one;

		if (table->alike == OPT_FREE)
			continue;
		opt_value(table, values, &value);
		dcp_buf_printf(&name, "--%s", table->name);
		one.name = dcp_arena_strdup(&arena, name.p ? name.p : "");
		one.value = dcp_arena_strdup(&arena, value.p ? value.p : "");
		dcp_buf_add(&own, &one, sizeof(one));
		if (!one.name || !one.value || dcp_buf_error(&name) || dcp_buf_error(&value))
			own.failed = true;
	}
	rc = load_agree(comm, load_say(err, dcp_buf_error(&own) ? -ENOMEM : 0), err,
			timeout_ms);
	return rc < 0 ? rc
		      : load_compare(comm, DCP_ITEMS(own, struct load_alike),
				     DCP_NITEMS(own, struct load_alike), err, timeout_ms);
}

enum cmd_exit export_join(struct exporting *x, const struct opt *table, const void *values)
{
	const struct export_opts *o = x->opts;
	struct dcpload_error err = { 0 };

	if (export_open_comm(o->comm, o->timeout, o->insecure, &x->comm, &err) < 0)
		return cmd_fail(export_exit_of_comm(err.code), "export: %s", err.text);
	if (export_compare_options(x->comm, table, values, o->timeout, &err) == 0)
		return CMD_OK;
	return export_speaks(x->comm, &err)
		       ? cmd_fail(export_exit_of_comm(err.code), "export: %s", err.text)
		       : export_exit_of_comm(err.code);
}

void export_finish(struct exporting *x)
{
	save_destroy(x->save);
	export_close(x->reader);
	dcpload_comm_close(x->comm);
	dcp_layouts_destroy(x->layouts);
	free(x->held);
	dcp_quantized_free(x->quantized);
	dcp_said_free(x->said);
	dcp_buf_finish(&x->tensors);
	dcp_buf_finish(&x->from);
	dcp_buf_finish(&x->objects);
	dcp_buf_finish(&x->extras);
	dcp_buf_finish(&x->extra_from);
	dcp_buf_finish(&x->left);
	dcp_buf_finish(&x->asks);
	dcp_arena_finish(&x->arena);
	pick_finish(&x->pick);
}

bool export_leads(const struct exporting *x)
{
	return !x->comm || x->comm->rank == 0;
}

int export_timeout(uint64_t seconds)
{
	return (int)(seconds ? seconds * 1000 : LOAD_TIMEOUT_MS);
}

bool export_speaks(const struct dcpload_comm *comm, const struct dcpload_error *err)
{
	int32_t local;

	if (comm->rank == 0 || err->rank != 0 || !load_is_lost(err->code))
		return comm->rank == 0;
	return comm->rank == 1 || (load_job_local_rank(&local, NULL) == 0 && local == 0);
}

/* Keep x->told, the error of any rank, in x->err. */
static int tell_err(struct exporting *x, int rc)
{
	struct dcpload_error *err = &x->told;

	if (rc == 0)
		return 0;
	load_while(err, rc, x->doing);
	x->err.code = rc;
	if (err->rank >= 0 && !load_names_rank(err))
		snprintf(x->err.msg, sizeof(x->err.msg), "rank %d: %.480s", err->rank,
			 err->text);
	else
		snprintf(x->err.msg, sizeof(x->err.msg), "%.500s", err->text);
	return rc;
}

int export_agree(struct exporting *x, int rc)
{
	if (x->comm->ranks == 1)
		return rc;
	x->told = (struct dcpload_error){ .rank = -1 };
	if (rc < 0)
		load_fail_err(&x->told, rc, &x->err);
	return tell_err(x, load_agree(x->comm, rc, &x->told, export_timeout(x->opts->timeout)));
}

struct work {
	struct exporting *x;
	int (*fn)(struct exporting *x);
};

static int run_work(void *ctx)
{
	struct work *w = ctx;

	return w->fn ? w->fn(w->x) : 0;
}

static void give_up(void *ctx)
{
	__atomic_store_n(&((struct work *)ctx)->x->given_up, true, __ATOMIC_RELAXED);
}

int export_step(struct exporting *x, int (*fn)(struct exporting *x))
{
	struct work w = { x, fn };
	struct dcpload_error err = { .rank = -1 };
	int done, rc = load_step_run(x->comm, run_work, give_up, &w, &done,
				     export_timeout(x->opts->timeout), &err);

	if (rc == 0)
		return export_agree(x, done);
	x->told = err;
	return tell_err(x, rc);
}

/* All fail with the code of the lowest rank that failed; the other ranks have no message. */
static enum cmd_exit code_of(struct exporting *x, enum cmd_exit code, int rc)
{
	if (code != CMD_OK || rc == 0)
		return code;
	if (rc >= -CMD_BAD)
		return (enum cmd_exit) - rc;
	return export_speaks(x->comm, &x->told) ? cmd_fail(CMD_ENV, "%s", x->err.msg) : CMD_ENV;
}

enum cmd_exit export_agree_code(struct exporting *x, enum cmd_exit code)
{
	return code_of(x, code, export_agree(x, -(int)code));
}

static int find_code(struct exporting *x)
{
	x->code = x->fn(x);
	return -(int)x->code;
}

enum cmd_exit export_step_code(struct exporting *x, enum cmd_exit (*fn)(struct exporting *x))
{
	int rc;

	x->fn = fn;
	x->code = CMD_OK;
	rc = export_step(x, find_code);
	return code_of(x, x->code, rc);
}

/* Gather @n bytes of every rank, in the order of ranks. @same: a record with the same @n on all
 * ranks. */
static int gather_ranks(struct exporting *x, const void *p, uint64_t n, bool same,
			struct load_blobs *out)
{
	int rc = (same ? load_gather_same : load_gather)(x->comm, p, n, out, &x->told,
							 export_timeout(x->opts->timeout));

	return tell_err(x, rc);
}

int export_identity(struct exporting *x, uint64_t *out)
{
	struct load_blobs b;
	int rc;

	*out = dcp_version_generation(x->pick.ck.v);
	if (x->comm->ranks == 1)
		return 0;
	rc = gather_ranks(x, out, sizeof(*out), true, &b);
	if (rc < 0)
		return rc;
	memcpy(out, b.at[0], sizeof(*out));
	load_blobs_free(&b);
	return export_agree(x, rc);
}

int export_same_plan(struct exporting *x)
{
	struct save_counts c;
	struct load_blobs b;
	int rc;

	if (x->comm->ranks == 1)
		return 0;
	save_count(x->save, &c);
	rc = gather_ranks(x, &c.plan, sizeof(c.plan), true, &b);
	if (rc < 0)
		return rc;
	for (uint32_t r = 0; r < x->comm->ranks; r++)
		if (memcmp(b.at[r], &c.plan, sizeof(c.plan)) != 0)
			rc = dcp_fail(
				&x->err, -ESTALE,
				"rank %u sees another checkpoint in %s, or was given other "
				"options",
				r, x->pick.ck.source);
	load_blobs_free(&b);
	return rc;
}

static void add_counts(struct exporting *x, const struct save_counts *c)
{
	x->kept += c->kept;
	x->copied += c->copied;
	x->direct += c->direct;
}

int export_share_sums(struct exporting *x)
{
	dcp_auto_buf struct dcp_buf mine = DCP_BUF_INIT;
	struct save_counts c;
	struct load_blobs b;
	int rc;

	save_count(x->save, &c);
	if (x->comm->ranks == 1) {
		add_counts(x, &c);
		return 0;
	}
	dcp_buf_add(&mine, &c, sizeof(c));
	rc = export_agree(x, dcp_err_say(&x->err, save_put_sums(x->save, &mine)));
	if (rc == 0)
		rc = gather_ranks(x, mine.p, mine.n, false, &b);
	if (rc < 0)
		return rc;
	for (uint32_t r = 0; rc == 0 && export_leads(x) && r < x->comm->ranks; r++) {
		const struct save_counts *of = b.at[r];

		if (b.n[r] < sizeof(*of) ||
		    save_take_sums(x->save, of + 1, b.n[r] - sizeof(*of)) < 0)
			rc = dcp_fail(&x->err, -EPROTO,
				      "ranks 0 and %u run different releases of dcpfs", r);
		else
			add_counts(x, of);
	}
	load_blobs_free(&b);
	return rc;
}
