/* SPDX-License-Identifier: Apache-2.0 */
/* dcpfs save, also called dcpsave: writes the files that paddle.incubate.distributed.utils.io.save
 * would write on each rank of a job that holds a version. Options and refusals are Paddle's. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/model/layout/layout.h"
#include "core/store/layouts/layouts.h"
#include "fs/session.h"
#include "tools/export/export.h"
#include "tools/load/comm/comm.h"
#include "tools/save/dcpsave.h"

struct saving_opts {
	struct export_opts export;
	struct opt_texts gather_to;
	const char *max_grouped;
	int state_type;
	bool binary;
};

#define AT(field) .off = offsetof(struct saving_opts, field)
#define LIMIT "3G" /* Paddle's default */

enum { NO_TYPE, PARAMS, OPTIMIZER };
static const char *const types[] = { "none", "params", "opt", NULL };

static const struct opt opts[] = {
	{ 0, "layout", "L", "what each rank holds; default: all of it", OPT_TEXT, OPT_LAYOUT,
	  AT(export.layout) },
	{ 0, "gather-to", "R", "only these ranks write, the tensors of all: 0 or 0,1",
	  OPT_TEXTS, AT(gather_to), .alike = OPT_SAME },
	{ 0, "state-type", "TYPE", "with --gather-to: params or opt", OPT_CHOICE,
	  AT(state_type), .choices = types, .alike = OPT_SAME },
	{ 0, "max-grouped-size", "N", "bytes of a round of gathering: 10K, 9M, 3G (default)",
	  OPT_TEXT, AT(max_grouped), .alike = OPT_SAME },
	{ 0, "use-binary-format", NULL, "one tensor alone, as a stream without a pickle",
	  OPT_FLAG, AT(binary), .alike = OPT_SAME },
	{ 0, "protocol", "N", "of the pickle: 2, 3 or 4, the default", OPT_CHOICE,
	  AT(export.protocol), .choices = export_protocols, .def = EXPORT_NO_PROTOCOL,
	  .alike = OPT_SAME },
	{ 0, "keys", "KEY", "only this key, all below it, or a glob; may be repeated",
	  OPT_TEXTS, AT(export.keys) },
	{ 0, "skip", "KEY", "not this key, nor what is below it; may be repeated", OPT_TEXTS,
	  AT(export.skip) },
	{ 0, "dtype", "TYPE", "convert to F32, BF16, F16, F8_E4M3, F8_E5M2", OPT_CHOICE,
	  AT(export.dtype), .choices = export_dtypes },
	{ 0, "comm", "HOW", "how ranks communicate: auto, alone, mpi, env", OPT_CHOICE,
	  AT(export.comm), .choices = export_comms },
	EXPORT_OPTS_JOB(AT(export.timeout), AT(export.insecure)),
	{ 0, "partial", NULL, "leave out what cannot be read; default: refuse", OPT_FLAG,
	  AT(export.partial), .alike = OPT_SAME },
	{ 0, "force", NULL, "replace an existing checkpoint file", OPT_FLAG, AT(export.force),
	  .alike = OPT_SAME },
	PICK_OPT_VERSION,
	{ 0, "json", NULL, "print what was done as JSON", OPT_FORM, AT(export.form),
	  .def = OUT_JSON },
	OPT_END
};

enum { OPERAND_SOURCE, OPERAND_VERSION, OPERAND_OUT };
static const struct opt_operand operands[] = { PICK_OPERANDS,
					       { "OUT", false, OPT_FILE },
					       { 0 } };

/* Where a tensor of the set is read. */
struct reading_of {
	struct save_source source;
	size_t tensor;
};

struct saving {
	const struct saving_opts *opts;
	struct exporting x;
	uint32_t gather_to[DCP_LAYOUT_MAX_DIMS * OPT_MAX_TEXTS];
	uint64_t ngather, max_grouped;
	bool gathers; /* ranks hold different parts, which are gathered */
	char *out;    /* of this rank */
	struct reading_of *reading;
	struct dcpsave *save;
	struct dcpload_error err;
	const struct dcpsave_config *config; /* while it writes */
	const volatile int *stop;            /* for a bucket: the signal that ends the save */
};

/* All ranks fail in the same way; rank 0 prints why. */
static enum cmd_exit fail_usage(const struct saving *s, const char *fmt, ...) DCP_PRINTF(2, 3);
static enum cmd_exit fail_usage(const struct saving *s, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return export_leads(&s->x) ? cmd_fail(CMD_USAGE, "save: %s", text) : CMD_USAGE;
}

/* ---- options ---- */

/* As Paddle: a number, or one with G, M or K. */
static bool parse_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMG";
	size_t n = strlen(text);
	const char *unit = n ? strchr(units, text[n - 1]) : NULL;
	char digits[24];

	if (n == 0 || n >= sizeof(digits))
		return false;
	snprintf(digits, sizeof(digits), "%.*s", (int)(n - (unit != NULL)), text);
	return opt_number(digits, 10, out) &&
	       (!unit ||
		!__builtin_mul_overflow(*out, (uint64_t)1 << (10 * (unit - units + 1)), out));
}

/* "0", "0,1" */
static bool parse_ranks(struct saving *s, const char *text)
{
	while (true) {
		size_t n = strcspn(text, ",");
		char word[16];
		uint64_t rank;

		if (n >= sizeof(word) || s->ngather == DCP_LEN(s->gather_to))
			return false;
		snprintf(word, sizeof(word), "%.*s", (int)n, text);
		if (!opt_number(word, 10, &rank) || rank > UINT32_MAX)
			return false;
		s->gather_to[s->ngather++] = (uint32_t)rank;
		if (!text[n])
			return true;
		text += n + 1;
	}
}

static enum cmd_exit parse_options(struct saving *s)
{
	const struct saving_opts *o = s->opts;
	const char *size = o->max_grouped ? o->max_grouped : LIMIT;

	for (size_t i = 0; i < o->gather_to.n; i++)
		if (!parse_ranks(s, o->gather_to.v[i]))
			return fail_usage(s, "--gather-to %s is not a rank or a list of ranks",
					  o->gather_to.v[i]);
	if (!parse_size(size, &s->max_grouped))
		return fail_usage(
			s, "--max-grouped-size is a number or like 10K, 9M, 200G, not \"%s\"",
			size);
	return CMD_OK;
}

/* Conditions for several ranks, as Paddle asserts them. */
static enum cmd_exit check_gathering(const struct saving *s)
{
	const char *type = types[s->opts->state_type];

	if (s->opts->state_type == NO_TYPE)
		return fail_usage(s, "with --gather-to, --state-type must be params or opt");
	for (uint64_t i = 0; i < s->ngather; i++)
		if (s->gather_to[i] >= s->x.comm->ranks)
			return fail_usage(s, "there is no rank %u to gather to, only 0 to %u",
					  s->gather_to[i], s->x.comm->ranks - 1);
	if (!dcp_has_extension(s->x.out, type) && export_leads(&s->x))
		cmd_warn("save: %s are saved as %s, which does not end with %s", type, s->x.out,
			 type);
	return CMD_OK;
}

/* Replace {rank} in OUT by the rank's number. */
static int name_file(struct saving *s)
{
	static const char mark[] = "{rank}";
	const char *at = strstr(s->x.out, mark);

	if (!at)
		s->out = strdup(s->x.out);
	else if (asprintf(&s->out, "%.*s%u%s", (int)(at - s->x.out), s->x.out, s->x.comm->rank,
			  at + sizeof(mark) - 1) < 0)
		s->out = NULL;
	return s->out ? 0 : -ENOMEM;
}

/* ---- parts of the ranks ---- */

static struct saving *saving_of(struct exporting *x)
{
	return (struct saving *)(void *)((char *)x - offsetof(struct saving, x));
}

static enum cmd_exit open_source(struct exporting *x)
{
	struct saving *s = saving_of(x);
	enum cmd_exit code = pick_open(&x->pick, x->args, &pick_plain);

	if (code == CMD_OK)
		code = export_check_place(s->out, x->pick.ck.source);
	if (code == CMD_OK)
		code = export_check_keys(x);
	if (code == CMD_OK)
		code = export_open_layout(x);
	if (code == CMD_OK && x->layout && dcp_layout_ranks(x->layout) != x->comm->ranks)
		code = fail_usage(s,
				  "%s has %u ranks, %u %s running: start %u (mpirun -np %u "
				  "dcpsave ...)",
				  x->opts->layout, dcp_layout_ranks(x->layout), x->comm->ranks,
				  x->comm->ranks == 1 ? "is" : "are",
				  dcp_layout_ranks(x->layout), dcp_layout_ranks(x->layout));
	return code;
}

/* Have all ranks the same keys? 1, 0, or -errno. */
static int same_keys(struct saving *s)
{
	const struct dcp_write_set *set = &s->x.set;
	uint64_t mine = set->ntensors;
	struct load_blobs b;
	int rc;

	for (size_t i = 0; i < set->ntensors + set->nobjects; i++) {
		const char *key = dcp_write_key(set, i);

		mine = dcp_hash64_more(mine, key, strlen(key) + 1);
	}
	rc = load_gather_same(s->x.comm, &mine, sizeof(mine), &b, &s->err,
			      export_timeout(s->opts->export.timeout));
	if (rc < 0)
		return rc;
	rc = 1;
	for (uint32_t r = 0; r < s->x.comm->ranks; r++)
		if (memcmp(b.at[r], b.at[0], sizeof(mine)) != 0)
			rc = 0;
	load_blobs_free(&b);
	return rc;
}

/* Does Paddle gather it? It gathers tensors, those of master_weights, and values of the
 * scheduler. */
static bool is_gathered(const struct dcp_write_set *set, size_t i)
{
	size_t n = i < set->ntensors ? set->tensors[i].npath
				     : set->objects[i - set->ntensors].npath;
	const char *const *path =
		i < set->ntensors ? set->tensors[i].path : set->objects[i - set->ntensors].path;

	if (i >= set->ntensors)
		return n && strcmp(path[0], "LR_Scheduler") == 0;
	return n <= 1 || (n == 2 && strcmp(path[0], "master_weights") == 0);
}

static int check_gathered(struct saving *s)
{
	const struct dcp_write_set *set = &s->x.set;

	if (s->x.is_cut)
		return dcp_fail(
			&s->x.err, -EINVAL,
			"the layout cuts tensors: only what data parallelism and sharding "
			"give to ranks, whole tensors, can be gathered");
	for (size_t i = 0; i < set->ntensors + set->nobjects; i++)
		if (!is_gathered(set, i))
			return dcp_fail(&s->x.err, -EINVAL,
					"%.200s is not a tensor of a state: with --gather-to "
					"there are tensors, master_weights and LR_Scheduler; "
					"--skip leaves it out",
					dcp_write_key(set, i));
	return 0;
}

/* Decide which rank writes which item. 0, or -errno with a line in x.err. */
static int choose_writers(struct saving *s)
{
	const struct dcp_write_set *set = &s->x.set;
	bool asked = s->ngather && s->x.comm->ranks > 1;
	int rc = 0, same = asked ? same_keys(s) : 1;

	if (same < 0)
		return dcp_fail(&s->x.err, same, "%.400s", s->err.text);
	if (asked && s->opts->state_type == PARAMS && !same)
		rc = dcp_fail(&s->x.err, -EINVAL,
			      "ranks have different keys: parameters can be saved with data "
			      "parallelism and sharding stage 1 or 2");
	s->gathers = rc == 0 && asked && !same;
	if (s->gathers)
		rc = check_gathered(s);
	if (rc == 0 && s->opts->binary && (set->ntensors != 1 || set->nobjects || s->gathers))
		rc = dcp_fail(&s->x.err, -EINVAL,
			      "--use-binary-format is for one tensor, not for a dict of %zu "
			      "tensors and %zu objects; --keys chooses",
			      set->ntensors, set->nobjects);
	if (rc == 0 && s->x.comm->ranks > 1 && !strstr(s->x.out, "{rank}") &&
	    (s->gathers ? s->ngather > 1 : true))
		rc = dcp_fail(&s->x.err, -EINVAL,
			      "several ranks write %s%s: put {rank} into the name", s->x.out,
			      asked && same ? ", since all have the same keys" : "");
	return rc;
}

/* ---- writing ---- */

static int read_tensor(void *ctx, uint32_t thread, uint64_t off, void *to, uint64_t n,
		       struct dcpload_error *err)
{
	const struct reading_of *r = ctx;
	struct dcp_err said = { 0 };
	int rc = r->source.read(r->source.ctx, thread, r->tensor, 0, off, to, n, &said);

	return load_fail_err(err, rc, &said);
}

static int add_all(struct saving *s)
{
	const struct dcp_write_set *set = &s->x.set;
	struct save_source source = export_source(s->x.reader);
	int rc = 0;

	s->reading = calloc(set->ntensors + 1, sizeof(*s->reading));
	if (!s->reading)
		return load_say(&s->err, -ENOMEM);
	for (size_t i = 0; rc == 0 && i < set->ntensors; i++) {
		const struct dcp_write_tensor *t = &set->tensors[i];
		const struct dcpsave_tensor tensor = { .size = sizeof(tensor),
						       .ndim = t->ndim,
						       .key = t->key,
						       .path = t->path,
						       .npath = t->npath,
						       .dtype = dcp_dtype_info(t->dtype)->name,
						       .shape = t->shape,
						       .read = read_tensor,
						       .ctx = &s->reading[i] };

		s->reading[i] = (struct reading_of){ source, i };
		rc = dcpsave_add(s->save, &tensor, &s->err);
	}
	for (size_t i = 0; rc == 0 && i < set->nobjects; i++) {
		const struct dcp_object *o = &set->objects[i];
		const struct dcpsave_object object = { .size = sizeof(object),
						       .key = o->key,
						       .path = o->path,
						       .npath = o->npath,
						       .type = o->type,
						       .json = o->json,
						       .classes = o->classes };

		rc = dcpsave_add_object(s->save, &object, &s->err);
	}
	return rc;
}

static int agree_ranks(struct saving *s, int rc)
{
	rc = load_agree(s->x.comm, rc, &s->err, export_timeout(s->opts->export.timeout));
	return load_while(&s->err, rc, "saving");
}

/* Write the file of this rank alone. */
static int write_own(struct exporting *x)
{
	struct saving *s = saving_of(x);
	int rc = dcpsave_open(NULL, s->out, s->config, &s->save, &s->err);

	if (rc == 0)
		rc = add_all(s);
	if (rc == 0)
		rc = dcpsave_plan(s->save, &s->err);
	if (rc == 0)
		rc = dcpsave_write(s->save, &s->err);
	return rc < 0 ? dcp_fail(&x->err, rc, "%.500s", s->err.text) : 0;
}

static int write_file(struct saving *s)
{
	struct dcpsave_config config = {
		.size = sizeof(config),
		.flags = DCPSAVE_FILE | (s->opts->export.force ? DCPSAVE_REPLACE : 0),
		.protocol = export_protocol(&s->opts->export),
		.format = s->x.format->name,
		.gather_to = s->gathers ? s->gather_to : NULL,
		.ngather = s->ngather,
		.max_grouped = s->max_grouped,
		.timeout_ms = (uint32_t)export_timeout(s->opts->export.timeout),
		.stop = s->stop,
	};
	int rc = agree_ranks(
		s, load_say(&s->err, export_withheld_beside(s->x.pick.ck.v, s->x.pick.ck.source,
							    s->out, &config.withheld)));

	if (rc < 0)
		return rc;
	s->config = &config;
	if (!s->gathers) {
		rc = export_step(&s->x, write_own);
		if (rc < 0 && s->x.comm->ranks > 1) {
			s->err = s->x.told;
			snprintf(s->err.text, sizeof(s->err.text), "%s", s->x.err.msg);
		}
		return rc;
	}
	rc = dcpsave_open(s->x.comm, s->out, &config, &s->save, &s->err);
	rc = agree_ranks(s, rc == 0 ? add_all(s) : rc);
	if (rc == 0)
		rc = agree_ranks(s, dcpsave_plan(s->save, &s->err));
	if (rc == 0)
		rc = agree_ranks(s, dcpsave_write(s->save, &s->err));
	return rc;
}

/* ---- what was done ---- */

static void put_report(struct saving *s, const struct load_blobs *b, struct out *o)
{
	double seconds = (double)(dcp_now_ns(CLOCK_MONOTONIC) - s->x.start_ns) / 1e9;
	uint64_t files = 0, bytes = 0, given = 0, tensors = 0;
	const struct dcpsave_report *mine = b->at[0];
	char size[OUT_SIZE], most[OUT_SIZE], count[32];

	for (uint32_t r = 0; r < s->x.comm->ranks; r++) {
		const struct dcpsave_report *t = b->at[r];

		files += t->files;
		bytes += t->bytes;
		given += t->given;
		tensors = DCP_MAX(tensors, t->tensors);
	}
	if (s->opts->export.form == OUT_JSON) {
		struct dcp_jsonw *w = &o->json;

		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "out", s->x.out);
		dcp_jsonw_put_str(w, "format", s->x.format->name);
		dcp_jsonw_put_str(w, "version", s->x.pick.ck.name);
		dcp_jsonw_put_u64(w, "ranks", s->x.comm->ranks);
		dcp_jsonw_put_bool(w, "gathered", s->gathers);
		dcp_jsonw_put_u64(w, "tensors", tensors);
		dcp_jsonw_put_u64(w, "files", files);
		dcp_jsonw_put_u64(w, "bytes", bytes);
		dcp_jsonw_put_u64(w, "given", given);
		dcp_jsonw_put_u64(w, "rounds", mine->rounds);
		dcp_jsonw_put_u64(w, "grouped", mine->grouped);
		dcp_jsonw_put_f64(w, "seconds", seconds);
		export_put_left_json(&s->x, w);
		dcp_jsonw_end(w);
		return;
	}
	out_text(&o->buf, s->x.out);
	dcp_buf_printf(&o->buf, ": %s, %s tensor%s, %s in %" PRIu64 " file%s, %.1f s",
		       s->x.format->name, out_count(count, tensors), dcp_s(tensors),
		       out_size(size, bytes), files, dcp_s(files), seconds);
	if (s->gathers)
		dcp_buf_printf(&o->buf, ", gathered in %" PRIu64 " round%s of at most %s",
			       mine->rounds, dcp_s(mine->rounds),
			       out_size(most, mine->grouped));
	dcp_buf_str(&o->buf, "\n");
	export_put_left(&s->x, o);
}

static enum cmd_exit fail_save(const struct saving *s, const struct dcpload_error *told, int rc,
			       const char *text)
{
	static const int wrong[] = { -EEXIST, -EISDIR, -ENOTDIR, -EINVAL };
	enum cmd_exit code = cmd_exit_of(rc);

	for (size_t i = 0; i < DCP_LEN(wrong); i++)
		code = rc == wrong[i] ? CMD_USAGE : code;
	if (!export_speaks(s->x.comm, told))
		return code;
	cmd_fail(code, "save: %s", text);
	if (rc == -EEXIST && !s->opts->export.force)
		cmd_hint("--force replaces it");
	return code;
}

static enum cmd_exit report_save(struct saving *s)
{
	struct dcpsave_report mine = { .size = sizeof(mine) };
	enum cmd_exit code = CMD_OK;
	struct load_blobs b;
	struct out o;

	dcpsave_report(s->save, &mine);
	if (load_gather_same(s->x.comm, &mine, sizeof(mine), &b, &s->err,
			     export_timeout(s->opts->export.timeout)) < 0)
		return fail_save(s, &s->err, s->err.code, s->err.text);
	if (export_leads(&s->x)) {
		out_init(&o, s->opts->export.form);
		put_report(s, &b, &o);
		code = out_flush(&o);
		out_finish(&o);
	}
	load_blobs_free(&b);
	return code;
}

/* ---- all of it ---- */

static enum cmd_exit save_version(struct saving *s)
{
	struct exporting *x = &s->x;
	enum cmd_exit code = export_join(x, opts, s->opts);
	char part[SAVE_PATH];
	int rc;

	if (code == CMD_OK)
		code = parse_options(s);
	if (code == CMD_OK && s->ngather && x->comm->ranks > 1)
		code = check_gathering(s);
	if (code != CMD_OK)
		return code;
	if (name_file(s) < 0)
		code = cmd_fail(CMD_ENV, "out of memory");
	else if (export_is_remote(s->out))
		s->stop = cmd_on_stop_undo("save");
	else if (save_part(s->out, part) == 0)
		cmd_on_stop("save", part, "another save to that name removes it", false);
	code = export_agree_code(x, code);
	if (code == CMD_OK)
		code = export_step_code(x, open_source);
	if (code != CMD_OK)
		return code;
	rc = export_step(x, export_choose);
	if (rc == 0)
		rc = export_agree(x, choose_writers(s));
	if (rc == 0)
		rc = export_agree(x, dcp_err_say(&x->err, export_reader(x, &x->reader)));
	if (rc < 0)
		return fail_save(s, &x->told, rc, x->err.msg);
	rc = write_file(s);
	if (!s->stop)
		cmd_on_stop(NULL, NULL, NULL, false);
	return rc < 0 ? fail_save(s, &s->err, rc, s->err.text) : report_save(s);
}

static enum cmd_exit run_save(const void *opts_in, const struct opt_args *args)
{
	const struct saving_opts *o = opts_in;
	struct saving s = { .opts = o };
	enum cmd_exit code;

	s.x = (struct exporting){ .opts = &o->export,
				  .args = args,
				  .doing = "saving",
				  .out = args->operand[OPERAND_OUT],
				  .start_ns = dcp_now_ns(CLOCK_MONOTONIC),
				  .format = dcp_write_format(o->binary ? "paddle-binary"
								       : "paddle"),
				  .local = true };
	dcpfs_fault_install(); /* so that files may be mapped */
	dcp_arena_init(&s.x.arena, (size_t)4 << 30);
	progress_init(&s.x.progress, true);
	code = save_version(&s);
	dcpsave_close(s.save);
	free(s.reading);
	free(s.out);
	export_finish(&s.x);
	cmd_stop();
	return code;
}

const struct cmd cmd_save = {
	.name = "save",
	.also = "dcpsave",
	.what = "write what each rank of a job holds as Paddle's io.save does",
	.about = "Write OUT as paddle.incubate.distributed.utils.io.save does, on each rank of "
		 "a job that holds a version: a file of what the rank has, or of what all have "
		 "together. {rank} in OUT is the rank's number. Also called dcpsave. Started "
		 "by mpirun, torchrun or srun, or alone.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct saving_opts),
	.run = run_save,
	.examples = { "srun dcpsave run1 a.pdopt --layout l.dcpl --gather-to 0 "
		      "--state-type opt",
		      "mpirun -np 4 dcpsave /data/run1 'run1.{rank}.pdparams' --layout "
		      "tp4:llama" },
};
