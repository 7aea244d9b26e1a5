/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of this machine: each is a function that reports its finding and, if something is missing,
 * what to do. Nothing is changed. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/origin.h"
#include "core/remote/remote.h"
#include "core/store/io/queue.h"
#include "tools/cmd.h"
#include "tools/doctor/doctor.h"
#include "tools/load/comm/comm.h"
#include "tools/load/error.h"
#include "tools/out.h"
#include "tools/pick.h"

#define ADVICE_INDENT 19
#define ENOUGH_FILES                                                                           \
	4096 /* a version of a large job has some thousand shards, all kept open               \
	      */

struct doctor_opts {
	int form;
};

static const struct opt opts[] = { PICK_OPT_JSON(struct doctor_opts),
				   PICK_OPT_TSV(struct doctor_opts), OPT_END };

static const struct opt_operand operands[] = { { "SOURCE", true, OPT_SOURCE }, { 0 } };

/* Does this process have CAP_SYS_ADMIN, and is it out of reach for every process here, fusermount3
 * included? */
static void find_capability(struct machine *m)
{
	dcp_auto_file FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	unsigned long long caps;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "CapEff: %llx", &caps) == 1)
			m->sys_admin = caps >> 21 & 1;
		if (sscanf(line, "CapBnd: %llx", &caps) == 1)
			m->barred = !(caps >> 21 & 1);
	}
}

/* Does the mode of @path keep users out, and not a container around them? */
static bool is_kept_by_mode(const char *path)
{
	struct stat st;

	return geteuid() != 0 && stat(path, &st) == 0 && (st.st_mode & 06) != 06;
}

static void check_device(struct machine *m, struct finding *f)
{
	dcp_auto_fd int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	m->device = fd >= 0;
	if (m->device) {
		doctor_say(f, GOOD, NULL, "opens");
		return;
	}
	doctor_say(f, BAD, NULL, "cannot be opened: %s", strerror(errno));
	if (errno == ENOENT)
		f->advice = m->container ? "start the container with --device /dev/fuse"
					 : "load the kernel's module: modprobe fuse";
	else if (errno == ENODEV || errno == ENXIO)
		f->advice = "the kernel has no FUSE; load it: modprobe fuse";
	else if (m->container && !is_kept_by_mode("/dev/fuse"))
		f->advice = "the container may not use it; start it with --device /dev/fuse "
			    "--cap-add SYS_ADMIN (docker also: --security-opt "
			    "apparmor=unconfined)";
	else
		f->advice = "its permissions should be 0666; as root: chmod 0666 /dev/fuse";
}

/* Where fusermount3 is on PATH; false: nowhere. */
static bool find_helper(char *path, size_t size, struct stat *st)
{
	const char *dirs = getenv("PATH");

	for (dirs = dirs ? dirs : "/usr/bin:/bin"; *dirs;) {
		size_t n = strcspn(dirs, ":");
		int len = snprintf(path, size, "%.*s/fusermount3", (int)n, dirs);

		if (n && (size_t)len < size && stat(path, st) == 0 && S_ISREG(st->st_mode))
			return true;
		dirs += n + (dirs[n] == ':');
	}
	return false;
}

static void check_helper(struct machine *m, struct finding *f)
{
	char path[200];
	struct stat st;

	if (!find_helper(path, sizeof(path), &st)) {
		doctor_say(f, m->sys_admin ? NOTE : BAD, "install the package fuse3",
			   "not on PATH%s", m->sys_admin ? "; root can do without" : "");
		return;
	}
	m->helper = st.st_uid == 0 && (st.st_mode & S_ISUID);
	if (m->helper || m->sys_admin)
		doctor_say(f, GOOD, NULL, "%s", path);
	else
		doctor_say(f, BAD,
			   "chown root and chmod u+s on it, or install the package fuse3 again",
			   "%s is not set-user-ID root", path);
}

static void check_allow_other(struct machine *m, struct finding *f)
{
	dcp_auto_file FILE *conf = fopen("/etc/fuse.conf", "re");
	bool set = false, needed;
	char line[256];

	while (conf && fgets(line, sizeof(line), conf)) {
		line[strcspn(line, " \t\n#")] = '\0';
		set |= strcmp(line, "user_allow_other") == 0;
	}
	needed = !set && !m->root;
	doctor_say(f, needed ? NOTE : GOOD,
		   needed ? "needed for -o allow_other only (others may then read your mount): "
			    "add the line user_allow_other"
			  : NULL,
		   "user_allow_other is %sset in /etc/fuse.conf%s", set ? "" : "not ",
		   !set && m->root ? "; root does not need it" : "");
}

static bool kernel_at_least(const struct machine *m, unsigned major, unsigned minor)
{
	return m->kernel[0] > major || (m->kernel[0] == major && m->kernel[1] >= minor);
}

static void check_kernel(struct machine *m, struct finding *f)
{
	struct utsname u;

	uname(&u);
	if (sscanf(u.release, "%u.%u", &m->kernel[0], &m->kernel[1]) != 2)
		m->kernel[0] = m->kernel[1] = 0;
	if (kernel_at_least(m, 4, 20))
		doctor_say(f, GOOD, NULL, "%.64s", u.release);
	else
		doctor_say(f, NOTE,
			   "reads of 1 MiB at once need Linux 4.20; here they come in 128 KiB",
			   "%.64s", u.release);
}

static void check_passthrough(struct machine *m, struct finding *f)
{
	bool can = kernel_at_least(m, 6, 9);

	if (can && m->sys_admin)
		doctor_say(f, GOOD, NULL, "possible: mount --passthrough");
	else
		doctor_say(
			f, NOTE,
			"mount --passthrough would let the kernel serve small files by itself; "
			"without it dcpfs serves them: slower, with the same results",
			"not here: %s", can ? "only root may" : "Linux 6.9 brought it");
}

static void check_container(struct machine *m, struct finding *f)
{
	doctor_say(f, m->barred ? BAD : GOOD,
		   m->barred ? "no process here may mount: start the container with --device "
			       "/dev/fuse --cap-add SYS_ADMIN (docker also: --security-opt "
			       "apparmor=unconfined)"
			     : NULL,
		   "%s; CAP_SYS_ADMIN is %s", m->container ? "inside one" : "none seen",
		   m->sys_admin ? "held" : "not held");
}

static bool in_container(void)
{
	return access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 ||
	       getenv("KUBERNETES_SERVICE_HOST") || getenv("container");
}

static void check_cache(struct machine *m, struct finding *f)
{
	dcp_auto_free char *dir = load_cache_dir(), *at = NULL;
	char *slash;

	if (!dir) {
		doctor_say(f, NOTE, "set HOME, XDG_CACHE_HOME or DCPFS_CACHE",
			   "none: each command rebuilds its indexes");
		return;
	}
	at = strdup(dir);
	/* The nearest existing directory decides whether those below can be made. */
	while (at && access(at, F_OK) < 0 && (slash = strrchr(at, '/')) && slash != at)
		*slash = '\0';
	if (at && access(at, W_OK | X_OK) == 0)
		doctor_say(f, GOOD, NULL, "%.200s, writable", dir);
	else
		doctor_say(
			f, NOTE,
			"each command rebuilds its indexes; name another with DCPFS_CACHE=DIR",
			"%.200s cannot be written: %s", dir, strerror(errno));
}

static void check_files(struct machine *m, struct finding *f)
{
	struct rlimit lim;
	bool few;

	getrlimit(RLIMIT_NOFILE, &lim);
	few = lim.rlim_max < ENOUGH_FILES;
	doctor_say(f, few ? NOTE : GOOD,
		   few ? "checkpoints of more shards than that cannot be read whole: raise "
			 "nofile in limits.conf, or LimitNOFILE of the service"
		       : NULL,
		   "%llu at once, up to %llu on request", (unsigned long long)lim.rlim_cur,
		   (unsigned long long)lim.rlim_max);
}

static void check_uring(struct machine *m, struct finding *f)
{
	int rc = dcp_queue_probe();

	if (rc == 0)
		doctor_say(f, GOOD, NULL,
			   "many reads in a call, of shards that are not mapped");
	else
		doctor_say(
			f, NOTE,
			"shards on network file systems are read with a call for each run of "
			"bytes: slower, with the same results",
			"not here: %s",
			rc == -ENOTSUP ? "liburing was not found when dcpfs was built"
				       : strerror(-rc));
}

static void check_servers(struct machine *m, struct finding *f)
{
	const char *why = "", *version = dcp_http_library(&why);

	if (version)
		doctor_say(f, GOOD, NULL,
			   "s3://, gs://, https:// and hf:// are sources (libcurl %s)",
			   version);
	else
		doctor_say(f, NOTE, "sources are paths; mount a bucket by another program",
			   "not here: %s", why);
}

static const struct {
	const char *name;
	void (*check)(struct machine *m, struct finding *f);
} checks[] = {
	{ "/dev/fuse", check_device },
	{ "fusermount3", check_helper },
	{ "allow_other", check_allow_other },
	{ "kernel", check_kernel },
	{ "passthrough", check_passthrough },
	{ "container", check_container },
	{ "cache", check_cache },
	{ "open files", check_files },
	{ "io_uring", check_uring },
	{ "servers", check_servers },
	{ "O_DIRECT", doctor_direct },
	{ "window", doctor_window },
	{ "huge pages", doctor_huge },
	{ "GPU", doctor_gpu },
	{ "cuFile", doctor_cufile },
	{ "NCCL", doctor_nccl },
	{ "CUDA IPC", doctor_ipc },
};

/* Libraries that the build looked for. */
static const struct {
	const char *name;
	bool found;
	const char *use;
} libraries[] = {
	{ "mpi", DCPFS_WITH_MPI,
	  "ranks of dcpfs load exchange bytes between nodes by it; without it they meet by "
	  "TCP, and each node reads for itself, unless GPUs exchange by NCCL" },
	{ "cuda", DCPFS_WITH_CUDA,
	  "dcpfs load --device fills the memory of GPUs; the driver is opened when it is "
	  "asked for" },
};

enum { MAX_NAMED = 5 };

static const char *const state_name[] = { "ok", "note", "bad" };

static void put_row(struct out *o, const char *name, const struct finding *f)
{
	out_row(o);
	out_put_str(o, "name", name);
	out_put_str(o, "state", state_name[f->state]);
	out_put_str(o, "found", f->found);
	out_put_str(o, "advice", f->advice);
	out_row_end(o);
}

/* The advice under its finding. */
static void print_text(struct out *o, const char *name, const struct finding *f)
{
	const char *paint = out_paint(o, state_name[f->state]);
	size_t width = o->width && o->width < 100 ? o->width : 80;

	dcp_buf_printf(&o->buf, "%s%-5s%s ", paint, state_name[f->state],
		       *paint ? OUT_PLAIN : "");
	out_text(&o->buf, name);
	dcp_buf_printf(&o->buf, "%*s ", (int)(12 - DCP_MIN(out_width(name), 12u)), "");
	out_text(&o->buf, f->found);
	dcp_buf_str(&o->buf, "\n");
	if (!f->advice)
		return;
	dcp_buf_printf(&o->buf, "%*s", ADVICE_INDENT, "");
	out_wrap(&o->buf, ADVICE_INDENT, ADVICE_INDENT, width, f->advice);
	dcp_buf_str(&o->buf, "\n");
}

static void print_library(size_t i, struct finding *f)
{
	char why[512];

	if (strcmp(libraries[i].name, "mpi") == 0 && libraries[i].found &&
	    !load_mpi_try(why, sizeof(why)))
		doctor_say(f, NOTE,
			   "install libdcpload-mpi.so beside dcpfs, and Open MPI (libopenmpi3)",
			   "its module cannot be opened: %.200s", why);
	else
		doctor_say(f, GOOD, libraries[i].use, "%s",
			   libraries[i].found ? "built in" : "not built in");
}

/* Can everything in @found be read, as far as its index shows? */
static void look_at(struct pick *p, const struct dcp_found *found, struct finding *f)
{
	const struct dcp_index_counts *n;
	dcp_auto_version struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	if (!found->complete) {
		doctor_say(f, NOTE, "it is not shown until its writer ends",
			   "incomplete: %.200s", found->why);
		return;
	}
	if (dcp_version_open(p->ck.source, found, &p->ck.store, &v, &err) < 0) {
		doctor_say(f, BAD, "copy it again, or use another version", "refused: %.240s",
			   err.msg);
		return;
	}
	progress_finish(&p->progress);
	n = dcp_index_counts(dcp_version_index(v));
	if (n->broken)
		doctor_say(f, BAD, "dcpfs ls -l SOURCE VERSION says which, and why",
			   "%llu of its %llu keys cannot be read",
			   (unsigned long long)n->broken,
			   (unsigned long long)(n->tensors + n->objects));
	else
		doctor_say(f, GOOD, NULL, "%llu tensors and %llu objects, complete",
			   (unsigned long long)n->tensors, (unsigned long long)n->objects);
}

/* The parts of the last sentence. */
struct tally {
	unsigned lines, notes, bad;
	struct dcp_buf names; /* of the bad checks */
};

static void print_finding(struct out *o, const char *name, const struct finding *f,
			  struct tally *t)
{
	t->lines++;
	t->notes += f->state == NOTE;
	if (f->state == BAD && t->bad++ < MAX_NAMED) {
		dcp_buf_str(&t->names, t->bad > 1 ? ", " : "");
		out_text(&t->names, name);
	}
	if (o->form == OUT_TEXT)
		print_text(o, name, f);
	else
		put_row(o, name, f);
}

/* Does the server of a source answer, and by which credentials? False: the source is a path. */
static bool look_at_server(const char *source, struct finding *f)
{
	dcp_auto_buf struct dcp_buf about = DCP_BUF_INIT;
	dcp_auto_free char *only = NULL;
	struct dcp_err err = { 0 };
	struct dcp_site at;
	int rc;

	if (dcp_origin_of(source) == &dcp_origin_local)
		return false;
	rc = dcp_site_find(source, &at, &only, &err);
	if (rc < 0) {
		doctor_say(f, BAD,
			   "check its name, the credentials (dcpfs(1), SOURCES ON SERVERS) and "
			   "the "
			   "network",
			   "%.240s", err.msg[0] ? err.msg : strerror(-rc));
		return true;
	}
	if (dcp_remote_about(&at, &about))
		doctor_say(f, GOOD, NULL, "it answers: %.240s", about.p ? about.p : "");
	dcp_site_close(&at);
	return about.n > 0;
}

/* CMD_NO: some of it cannot be read. */
static enum cmd_exit print_source(const char *source, struct out *o, struct tally *t)
{
	struct finding server = { 0 };
	struct pick p = { 0 };
	enum cmd_exit code;

	if (look_at_server(source, &server)) {
		struct tally own = { 0 }; /* not counted: it is no version */

		print_finding(o, "server", &server, &own);
		dcp_buf_finish(&own.names);
		if (server.state == BAD)
			return CMD_NO;
	}
	code = pick_source(&p, source, &pick_plain, false);
	for (size_t i = 0; code <= CMD_NO && i < p.ck.scan.n; i++) {
		struct finding f;

		look_at(&p, &p.ck.scan.found[i], &f);
		print_finding(o, p.ck.scan.found[i].name, &f, t);
		if (f.state == BAD)
			code = CMD_NO;
	}
	pick_finish(&p);
	return code;
}

/* The conclusion from the lines above; it names each bad line. */
static void conclude_all(const struct tally *here, const char *source,
			 const struct tally *there, enum cmd_exit sound, struct dcp_buf *out)
{
	if (here->bad)
		dcp_buf_printf(out,
			       "dcpfs cannot mount here (%s); ls, tree, show, cat, plan, load "
			       "and export need no mount",
			       here->names.p);
	else
		dcp_buf_str(out, "dcpfs can mount here");
	if (here->notes)
		dcp_buf_printf(out, "; %u note%s what it does without", here->notes,
			       here->notes == 1 ? " says" : "s say");
	if (source) {
		dcp_buf_str(out, ". ");
		out_text(out, source);
	}
	if (source && there->bad)
		dcp_buf_printf(out, ": %u of %u version%s cannot be read, or not whole: %s%s",
			       there->bad, there->lines, dcp_s(there->lines), there->names.p,
			       there->bad > MAX_NAMED ? ", ..." : "");
	else if (source && sound != CMD_OK)
		dcp_buf_str(out, " cannot be read");
	else if (source && there->notes == there->lines)
		dcp_buf_str(out, " has no complete version");
	else if (source)
		dcp_buf_printf(out,
			       ": all that is complete can be read, as far as its indexes "
			       "show%s",
			       there->notes ? "; the rest is incomplete" : "");
	dcp_buf_str(out, ".");
}

static enum cmd_exit run_doctor(const void *opts_in, const struct opt_args *args)
{
	static const struct out_field fields[] = {
		{ "name" }, { "state" }, { "found" }, { "advice" }, { NULL }
	};
	const struct doctor_opts *d = opts_in;
	struct machine m = { .root = geteuid() == 0,
			     .container = in_container(),
			     .source = args->operand[0] };
	size_t n = DCP_LEN(checks) + DCP_LEN(libraries);
	struct tally here = { 0 }, there = { 0 };
	dcp_auto_buf struct dcp_buf sentence = DCP_BUF_INIT;
	enum cmd_exit code, sound = CMD_OK;
	bool can;
	struct out o;
	int was;

	find_capability(&m);
	out_init(&o, d->form);
	out_row(&o);
	out_list(&o, "checks", fields);
	was = out_divert();
	for (size_t i = 0; i < n; i++) {
		size_t feature = i - DCP_LEN(checks);
		bool machine = i < DCP_LEN(checks);
		const char *name = machine ? checks[i].name : libraries[feature].name;
		struct finding f = { 0 };

		if (machine)
			checks[i].check(&m, &f);
		else
			print_library(feature, &f);
		print_finding(&o, name, &f, &here);
	}
	if (args->operand[0])
		sound = print_source(args->operand[0], &o, &there);
	out_restore(was);
	can = here.bad == 0;
	conclude_all(&here, args->operand[0], &there, sound, &sentence);
	out_list_end(&o, false);
	if (d->form == OUT_JSON) {
		dcp_jsonw_put_bool(&o.json, "can_mount", can);
		dcp_jsonw_put_str(&o.json, "summary", sentence.p ? sentence.p : "");
		dcp_jsonw_end(&o.json);
	} else if (d->form == OUT_TEXT) {
		size_t width = o.width && o.width < 100 ? o.width : 80;

		dcp_buf_str(&o.buf, "\n");
		out_wrap(&o.buf, 0, 0, width, sentence.p ? sentence.p : "");
		dcp_buf_str(&o.buf, "\n");
	}
	code = out_flush(&o);
	dcp_buf_finish(&here.names);
	dcp_buf_finish(&there.names);
	return code != CMD_OK ? code : can ? sound : CMD_NO;
}

const struct cmd cmd_doctor = {
	.name = "doctor",
	.what = "check this machine, and say what to do where it lacks something",
	.about = "Look at what mounting, fast reading and dcpfs load need, and say what to do "
		 "where something is missing; of SOURCE, how many keys of each version cannot "
		 "be read. Exits 1 when mounting cannot work here, or something of SOURCE "
		 "cannot be read.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct doctor_opts),
	.run = run_doctor,
	.examples = { "dcpfs doctor", "dcpfs doctor /data/run1",
		      "dcpfs doctor --json | jq .can_mount" },
};
