/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

enum {
	CANNOT_TELL = 125,
	NOT_RUN = 126,
	SIGNALLED = 256
}; /* exit codes of a command, as for git bisect run */

struct bisect_opts {
	int form;
	bool nan;
	uint64_t jobs;
	struct opt_texts keys;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	{ 0, "nan", NULL, "instead of a command: does a tensor have NaN or infinity?", OPT_FLAG,
	  .off = offsetof(struct bisect_opts, nan) },
	WALK_OPT_KEYS(struct bisect_opts),
	WALK_OPT_JOBS(struct bisect_opts),
	PICK_OPTS(struct bisect_opts),
	PICK_OPT_JSON(struct bisect_opts),
	OPT_END
};

static const struct opt_operand operands[] = { { "SOURCE", false, OPT_SOURCE },
					       { "COMMAND", true, OPT_COMMAND },
					       { 0 } };

struct searching {
	const struct bisect_opts *o;
	const char *source;
	char *const *command; /* NULL-ended */
	char mnt[4096];
	struct pick all;
	const char **names; /* names of complete versions, the oldest first */
	size_t n;
	uint64_t tried;
	struct out out;
};

/* ---- one version ---- */

/* Run @argv and return its exit code. Its standard output goes into @out, or, without @out, to
 * standard error. */
static int run_program(char *const *argv, const char *dir, char *out, size_t size)
{
	int ends[2] = { -1, -1 }, status;
	size_t n = 0;
	pid_t pid;

	if (out && pipe(ends) < 0)
		return NOT_RUN;
	pid = fork();
	if (pid == 0) {
		signal(SIGINT, SIG_DFL);
		if (dup2(out ? ends[1] : STDERR_FILENO, STDOUT_FILENO) < 0)
			_exit(NOT_RUN);
		if (dir && (setenv("DCPFS_VERSION", dir, 1) < 0 || chdir(dir) < 0))
			_exit(NOT_RUN);
		if (out) {
			close(ends[0]);
			close(ends[1]);
		}
		execvp(argv[0], argv);
		fprintf(stderr, "dcpfs: bisect: %s: %s\n", argv[0], strerror(errno));
		_exit(NOT_RUN);
	}
	if (out)
		close(ends[1]);
	while (out && n + 1 < size) {
		ssize_t got = read(ends[0], out + n, size - n - 1);

		if (got <= 0)
			break;
		n += (size_t)got;
	}
	if (out) {
		out[n] = '\0';
		out[strcspn(out, "\n")] = '\0';
		close(ends[0]);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return NOT_RUN;
	return WIFEXITED(status) ? WEXITSTATUS(status) : SIGNALLED + WTERMSIG(status);
}

static enum cmd_exit mount_source(struct searching *w)
{
	char exe[] = "/proc/self/exe", verb[] = "mount", none[] = "--no-cache";
	dcp_auto_free char *index = NULL, *limit = NULL;
	char *argv[7] = { exe, verb, (char *)(uintptr_t)w->source };
	size_t n = 3;

	if ((w->o->pick.index && asprintf(&index, "--index=%s", w->o->pick.index) < 0) ||
	    (w->o->pick.cache_limit &&
	     asprintf(&limit, "--cache-limit=%llu",
		      (unsigned long long)w->o->pick.cache_limit) < 0))
		return cmd_fail(CMD_ENV, "bisect: %s", strerror(ENOMEM));
	if (index)
		argv[n++] = index;
	if (limit)
		argv[n++] = limit;
	if (w->o->pick.no_cache)
		argv[n++] = none;

	if (run_program(argv, NULL, w->mnt, sizeof(w->mnt)) != 0 || !w->mnt[0])
		return cmd_fail(CMD_ENV, "bisect: %s cannot be mounted", w->source);
	return CMD_OK;
}

static void umount_source(struct searching *w)
{
	char exe[] = "/proc/self/exe", verb[] = "umount";
	char *argv[] = { exe, verb, w->mnt, NULL };
	char said[64];

	if (w->mnt[0])
		run_program(argv, NULL, said, sizeof(said));
}

static int look_for_nan(struct searching *w, const char *version)
{
	struct pick p;
	struct walk_keys keys = { .nbytes = 0 };
	struct measuring m = { .p = &p, .keys = &keys, .jobs = (unsigned)w->o->jobs };
	enum cmd_exit code = pick_source(&p, w->source, &w->o->pick, false);
	int found = CANNOT_TELL;

	if (code == CMD_OK)
		code = pick_version(&p, version);
	if (code == CMD_OK)
		code = walk_keys(&p, &w->o->keys, &keys);
	if (code == CMD_OK && measure_run(&m) == 0 && m.code == CMD_OK) {
		found = 0;
		for (size_t i = 0; i < WALK_NKEYS(&keys); i++)
			if (measured_is_bad(&m.m[i]))
				found = 1;
	}
	measure_finish(&m);
	walk_keys_finish(&keys);
	pick_finish(&p);
	return found;
}

/* 0: it is good. */
static int try_version(struct searching *w, size_t i)
{
	char dir[8192];
	int code;

	w->tried++;
	snprintf(dir, sizeof(dir), "%s/%s", w->mnt, w->names[i]);
	code = w->o->nan ? look_for_nan(w, w->names[i]) : run_program(w->command, dir, NULL, 0);
	cmd_warn("%s: %s", w->names[i],
		 code == 0             ? "good"
		 : code == CANNOT_TELL ? "cannot be told, and is left out"
				       : "bad");
	return code;
}

/* ---- all ---- */

/* Find the first bad version. It is in (lo, hi]; -1 and n stand for a good and a bad end. */
static enum cmd_exit search_versions(struct searching *w, const char **good, const char **bad)
{
	size_t lo = 0, hi = w->n; /* [lo, hi) is not known yet */
	bool last = true;         /* both ends are tried first, as most often nothing is bad */

	*good = *bad = NULL;
	while (lo < hi) {
		size_t at = last ? hi - 1 : lo + (hi - lo) / 2;
		int code = try_version(w, at);

		if (code >= NOT_RUN)
			return code > SIGNALLED
				       ? cmd_fail(CMD_ENV,
						  "bisect: the command was ended by signal "
						  "%d, which says nothing of the version",
						  code - SIGNALLED)
			       : code > NOT_RUN + 1
				       ? cmd_fail(CMD_ENV,
						  "bisect: the command ended with exit code "
						  "%d, which says nothing of the version",
						  code)
				       : cmd_fail(CMD_ENV, "bisect: the command cannot be run");
		if (code == CANNOT_TELL) {
			memmove(&w->names[at], &w->names[at + 1],
				(w->n - at - 1) * sizeof(*w->names));
			w->n--;
			hi--;
			continue;
		}
		last = false;
		if (code == 0) {
			*good = w->names[at];
			lo = at + 1;
		} else {
			*bad = w->names[at];
			hi = at;
		}
	}
	return CMD_OK;
}

static enum cmd_exit report_bisect(struct searching *w, const char *good, const char *bad)
{
	struct out *o = &w->out;
	enum cmd_exit code;

	if (o->form == OUT_JSON) {
		dcp_jsonw_object(&o->json);
		out_put_str(o, "first_bad", bad);
		out_put_str(o, "last_good", good);
		dcp_jsonw_put_u64(&o->json, "versions", w->n);
		dcp_jsonw_put_u64(&o->json, "tried", w->tried);
		dcp_jsonw_end(&o->json);
	} else if (bad) {
		out_text(&o->buf, bad);
		dcp_buf_str(&o->buf, " is the first bad version");
		if (good) {
			dcp_buf_str(&o->buf, ", ");
			out_text(&o->buf, good);
			dcp_buf_str(&o->buf, " the last good one");
		}
		dcp_buf_printf(&o->buf, " (%llu of %zu tried)\n", (unsigned long long)w->tried,
			       w->n);
	} else {
		if (good)
			out_text(&o->buf, good);
		dcp_buf_str(&o->buf, good ? " is good, and the newest that can be told\n"
					  : "no version can be told\n");
	}
	code = out_flush(o);
	if (code == CMD_OK && !bad && !good)
		return cmd_fail(CMD_BAD, "bisect: no version can be told");
	return code == CMD_OK && bad ? CMD_NO : code;
}

static enum cmd_exit run_bisect(const void *opts_in, const struct opt_args *args)
{
	const struct bisect_opts *o = opts_in;
	struct searching w = { .o = o,
			       .source = args->operand[PICK_SOURCE],
			       .command = args->command };
	const char *good, *bad;
	enum cmd_exit code;

	if (!w.command == !o->nan)
		return cmd_fail(CMD_USAGE, "bisect: give either --nan or a command, after --: "
					   "dcpfs bisect SOURCE -- COMMAND ...");
	out_init(&w.out, o->form);
	walk_prepare();
	code = pick_source(&w.all, w.source, &o->pick, false);
	if (code == CMD_OK) {
		w.names = calloc(w.all.ck.scan.n + 1, sizeof(*w.names));
		code = w.names ? CMD_OK : cmd_fail(CMD_ENV, "bisect: %s", strerror(ENOMEM));
	}
	for (size_t i = 0; code == CMD_OK && i < w.all.ck.scan.n; i++)
		if (w.all.ck.scan.found[i].complete)
			w.names[w.n++] = w.all.ck.scan.found[i].name;
	signal(SIGINT,
	       SIG_IGN); /* Ctrl-C ends the command only, so the mount can be taken away */
	if (code == CMD_OK && !o->nan)
		code = mount_source(&w);
	if (code == CMD_OK)
		code = search_versions(&w, &good, &bad);
	if (code == CMD_OK)
		code = report_bisect(&w, good, bad);
	umount_source(&w);
	free(w.names);
	out_finish(&w.out);
	pick_finish(&w.all);
	return code;
}

const struct cmd cmd_bisect = {
	.name = "bisect",
	.what = "find the first version at which a command fails, or NaNs begin",
	.about = "Run a command on the mounted directory of some versions, and find the first "
		 "at which it fails: the newest, then halves, so versions before it must be "
		 "good and those after it bad. The directory is the current one, and "
		 "$DCPFS_VERSION. Exit code 125: it cannot tell. Exits 1 if one is bad.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct bisect_opts),
	.run = run_bisect,
	.examples = { "dcpfs bisect /data/run1 --nan",
		      "dcpfs bisect /data/run1 -- python3 /data/loss.py" },
};
