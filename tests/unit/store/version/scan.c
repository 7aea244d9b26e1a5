/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a source holds, and what a person is told when that is nothing.
 *
 * covers: names, origin/dir/local
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/origin/dir/dir.h"
#include "core/store/version/version.h"
#include "tests/unit/t/fake.h"
#include "tests/unit/t/parse/dir.h"

/* clang-format off */
static const struct {
	const char *what;
	/* files to make; "a>b" is a link a to b, "a=b" has the text b, "a/" a directory */
	const char *names;
	const char *source;
	const char *found; /* names in order, incomplete ones in brackets; NULL: refused */
	const char *says;  /* in the message */
	int code;
	bool single;
} cases[] = {
	{ "a checkpoint", "run/COMMIT run/a.shard", "run", "run", NULL, 0, true },
	{ "its name is that of the real directory", "run/COMMIT here>run", "here", "run", NULL, 0,
	  true },
	{ "a slash behind", "run/COMMIT", "run/", "run", NULL, 0, true },
	{ "a checkpoint with checkpoints inside is one", "run/COMMIT run/x/COMMIT", "run", "run",
	  NULL, 0, true },
	{ "but for numbered saves", "run/COMMIT run/x/COMMIT run/checkpoint-5/COMMIT run/step_9/x.shard",
	  "run", "run checkpoint-5 [step_9]", NULL, 0, false },
	{ "and links to them", "run/COMMIT run/checkpoint-5/COMMIT run/step9>checkpoint-5", "run",
	  "run checkpoint-5", NULL, 0, false },
	{ "a numbered name without a checkpoint", "run/COMMIT run/checkpoint-5/x", "run", "run", NULL,
	  0, true },
	{ "an incomplete one", "run/a.shard", "run", "[run]", NULL, 0, true },
	{ "versions in the order of their numbers",
	  "run/step-500/COMMIT run/step-2500/COMMIT run/step-1000/COMMIT", "run",
	  "step-500 step-1000 step-2500", NULL, 0, false },
	{ "an incomplete version is listed", "run/s1/COMMIT run/s2/x.shard", "run", "s1 [s2]", NULL,
	  0, false },
	{ "only incomplete versions", "run/s1/x.shard run/s2/x.shard", "run", "[s1] [s2]", NULL, 0,
	  false },
	{ "other directories and files are passed over", "run/s1/COMMIT run/logs/x run/README",
	  "run", "s1", NULL, 0, false },
	{ "hidden directories too", "run/s1/COMMIT run/.tmp-s2/COMMIT", "run", "s1", NULL, 0,
	  false },
	{ "a stray shard does not hide the versions", "run/x.shard run/s1/COMMIT", "run", "s1", NULL,
	  0, false },
	{ "an incomplete source with incomplete directories", "run/x.shard run/s1/y.shard", "run",
	  "[run]", NULL, 0, true },
	{ "a link to a version is not another one", "run/s1/COMMIT run/s2/COMMIT run/latest>s2",
	  "run", "s1 s2", NULL, 0, false },
	{ "a link to one that is not listed is", "run/s1/COMMIT run/old/s0/COMMIT run/s0>old/s0",
	  "run", "s0 s1", NULL, 0, false },
	{ "two links to it are one", "run/old/s0/COMMIT run/a>old/s0 run/b>old/s0", "run", "a", NULL,
	  0, false },
	{ "a link that leads out is not followed", "run/s1/COMMIT else/COMMIT run/s2>../else",
	  "run", "s1", NULL, 0, false },
	{ "nor is one alone", "else/COMMIT run/x run/s2>../else", "run", NULL,
	  "; of s2: it is a link out of the source, which is not followed: give what it leads to", -EINVAL, false },
	{ "nothing there", "run/", "nowhere", NULL, "nowhere: No such file", -ENOENT, false },
	{ "an empty directory", "run/", "run", NULL,
	  "run is not a checkpoint: looked in it and two levels below for a checkpoint for tests; "
	  "it is empty", -EINVAL, false },
	{ "some files", "run/x run/y", "run", NULL, "it holds x and more", -EINVAL, false },
	{ "a directory of runs", "run/job/s9/COMMIT run/job/s10/COMMIT run/job/logs/x run/other/s8/COMMIT",
	  "run", "other@s8 job@s9 job@s10", NULL, 0, false },
	{ "one run beside a version", "run/job/s9/COMMIT run/s1/COMMIT", "run", "s1 job@s9", NULL, 0, false },
	{ "an incomplete one in a run", "run/job/s9/COMMIT run/job/s10/x.shard", "run", "job@s9 [job@s10]",
	  NULL, 0, false },
	{ "loose files hide no version beside them", "run/job/x.loose run/job/s9/COMMIT", "run", "job@x job@s9",
	  NULL, 0, false },
	{ "three", "run/job/x/s9/COMMIT", "run", NULL, "/run/job/x/s9 (a checkpoint for tests)", -EINVAL,
	  false },
	{ "two such places", "run/ckpt/s1/COMMIT run/ckpts/s2/COMMIT", "run", "ckpt@s1 ckpts@s2", NULL, 0,
	  false },
	{ "a source of such a name", "run/tmp-s2/COMMIT", "run/tmp-s2", "tmp-s2", NULL, 0, true },
	{ "a file that is not a checkpoint", "run/file", "run/file", NULL, "run/file is a file, but not "
	  "a checkpoint", -EINVAL, false },
	{ "a file of a checkpoint", "run/COMMIT run/a.shard", "run/a.shard", NULL, "run/a.shard is one "
	  "file of a checkpoint; the whole is ", -EINVAL, false },
	{ "a shard without its checkpoint", "run/m/a.shard", "run/m/a.shard", NULL, "a.shard is a file, "
	  "but not a checkpoint", -EINVAL, false },
	{ "a file that is one", "run/a.loose run/b.loose", "run/a.loose", "a.loose", NULL, 0, true },
	{ "a link to such a file", "run/a.loose here>run/a.loose", "here", "a.loose", NULL, 0, true },
	{ "loose files are versions", "run/s10.loose run/s9.loose run/x", "run", "s9 s10", NULL, 0,
	  false },
	{ "some belong together", "run/s1.loose run/s1-2.loose run/s2.loose", "run", "s1 s2", NULL,
	  0, false },
	{ "one version of them is called as another beside it would be", "run/s1.loose run/s1-2.loose", "run",
	  "s1", NULL, 0, true },
	{ "loose files beside directories", "run/s2.loose run/s1/COMMIT", "run", "s1 s2", NULL, 0,
	  false },
	{ "one version of loose files below", "run/s1/a.loose run/s2/b.loose", "run", "s1@a s2@b",
	  NULL, 0, false },
	{ "a directory's model", "run/s1/model.loose run/s2/model.loose run/s2/b.loose", "run", "s1 s2@b s2", NULL,
	  0, false },
	{ "several", "run/s1/a.loose run/s1/b.loose run/s2/COMMIT", "run", "s1@b s1@a s2", NULL, 0,
	  false },
	{ "a link to a loose file is not another one", "run/a.loose run/b.loose run/latest.loose>a.loose",
	  "run", "a b", NULL, 0, false },
	{ "a text that names a loose file is a link to it",
	  "run/a.loose run/b.loose run/latest.loose=a.loose", "run", "a b", NULL, 0, false },
	{ "and one with a path in it, of which the end counts",
	  "run/a.loose run/b.loose run/latest.loose=bucket/run/b.loose", "run", "a b", NULL, 0, false },
	{ "one that names nothing there is a file", "run/a.loose run/b.loose=gone.loose", "run", "a b",
	  NULL, 0, false },
	{ "and one that names itself", "run/a.loose run/b.loose=b.loose", "run", "a b", NULL, 0, false },
	{ "a text that names a directory", "run/s1/COMMIT run/latest.loose=s1", "run", "s1", NULL, 0,
	  false },
	{ "nothing but such a text", "run/latest.loose=gone.loose", "run", "latest@fake", NULL, 0, true },
	{ "such a text as source", "run/s1/COMMIT run/latest=s1", "run/latest", "s1", NULL, 0, true },
	{ "to a file", "run/a.loose run/b.loose run/latest=a.loose", "run/latest", "a.loose", NULL, 0,
	  true },
	{ "called without its .symlink", "run/a.loose run/latest.loose.symlink=x/a.loose",
	  "run/latest.loose", "a.loose", NULL, 0, true },
	{ "it leads nowhere else", "run/latest=../other/s1 other/s1/COMMIT", "run/latest", NULL,
	  "not a checkpoint", -EINVAL, false },
	{ "a loose file called as a directory", "run/s1.loose run/s1/COMMIT", "run", "s1@fake s1", NULL,
	  0, false },
	{ "and another as it is called then", "run/s1.loose run/s1/COMMIT run/s1@fake.loose", "run",
	  "s1@fake@fake s1@fake s1", NULL, 0, false },
	{ "a name that means the newest", "run/latest/COMMIT run/s1/COMMIT", "run", "s1 latest@fake", NULL, 0,
	  false },
	{ "an incomplete one beside loose files", "run/s1.loose run/s2/x.shard", "run", "s1 [s2]",
	  NULL, 0, false },
	{ "tensorizer", "run/model.tensors", "run", NULL, "run is a model of tensorizer", -EINVAL, false },
	{ "GGUF, one level down", "run/m/llama.gguf", "run", NULL,
	  "/run/m, a GGUF model of llama.cpp, which dcpfs does not read: take the safetensors",
	  -EINVAL, false },
	{ "Orbax", "run/_CHECKPOINT_METADATA run/d/x", "run", NULL,
	  "run is an Orbax checkpoint, by its _CHECKPOINT_METADATA, which dcpfs does not read: save "
	  "it in JAX", -EINVAL, false },
	{ "TensorStore", "run/manifest.ocdbt run/d/x", "run", NULL, "a TensorStore OCDBT database",
	  -EINVAL, false },
	{ "a file of one", "run/m.onnx", "run/m.onnx", NULL, "m.onnx is an ONNX model", -EINVAL,
	  false },
	{ "ExecuTorch", "run/m.pte", "run/m.pte", NULL, "the state_dict it was exported from",
	  -EINVAL, false },
	{ "Keras", "run/m.weights.h5", "run", NULL, "a HDF5 file (Keras), by its m.weights.h5",
	  -EINVAL, false },
	{ "TensorFlow", "run/variables.index run/variables.data-00000-of-00001", "run", NULL,
	  "save its variables as safetensors", -EINVAL, false },
	{ "one file of it", "run/model.ckpt-100.index", "run/model.ckpt-100.index", NULL,
	  "a TensorFlow checkpoint", -EINVAL, false },
	{ "torchsnapshot", "run/.snapshot_metadata run/0/model/w", "run", NULL,
	  "run is a torchsnapshot checkpoint, by its .snapshot_metadata, which dcpfs does not read: "
	  "restore it", -EINVAL, false },
	{ "Flax", "run/checkpoint_5.msgpack", "run", NULL, "a Flax checkpoint", -EINVAL, false },
	{ "Zarr", "run/.zgroup", "run", NULL, "a Zarr store", -EINVAL, false },
};
/* clang-format on */

static void make(const struct t_dir *d, const char *names)
{
	char copy[512], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", names);
	for (char *name = strtok_r(copy, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
		char *to = strchr(name, '>'), *text = strchr(name, '=');

		if (to)
			*to++ = '\0';
		if (text)
			*text++ = '\0';
		if (to)
			assert_int_equal(symlinkat(to, d->fd, name), 0);
		else if (name[strlen(name) - 1] == '/')
			t_dir_sub(d, strtok(name, "/"));
		else
			t_dir_text(d, name, text ? text : "");
	}
}

/* Loose files lie in the source itself, or in the directory before the "@". */
static const char *where_of(const struct dcp_scan *scan, const struct dcp_found *f)
{
	static char where[64];

	if (scan->single || !strcmp(f->name, "run") ||
	    (f->group && (!strcmp(f->name, f->group) || strstr(f->name, "@fake"))))
		return "";
	snprintf(where, sizeof(where), "%s", f->name);
	where[strcspn(where, "@")] = f->group || strstr(f->name, "@fake") ? '\0' : '/';
	where[strlen(f->name)] = '\0';
	return where;
}

static void check_found(const struct dcp_scan *scan, const char *want)
{
	char got[512] = "";

	for (size_t i = 0; i < scan->n; i++) {
		const struct dcp_found *f = &scan->found[i];
		size_t n = strlen(got);

		snprintf(got + n, sizeof(got) - n, f->complete ? "%s%s" : "%s[%s]",
			 i ? " " : "", f->name);
		assert_ptr_equal(f->format, &t_fake_format);
		assert_string_equal(f->where, where_of(scan, f));
		assert_true(f->commit_ns > 0);
		if (!f->complete)
			assert_string_equal(f->why, "no COMMIT");
		else
			assert_null(f->why);
	}
	assert_string_equal(got, want);
}

static void versions_are_found(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct t_dir d;
		struct dcp_scan scan = { 0 };
		struct dcp_err err = { 0 };
		int code;

		t_case(cases[i].what);
		t_dir_make(&d, "test_scan");
		make(&d, cases[i].names);
		code = dcp_scan(t_dir_path(&d, cases[i].source), &scan, &err);
		if (code != cases[i].code)
			fail_msg("%d: %s", code, err.msg);
		if (code == 0) {
			assert_int_equal(scan.single, cases[i].single);
			check_found(&scan, cases[i].found);
			dcp_scan_finish(&scan);
		} else {
			t_assert_says(&err, cases[i].says);
		}
		t_dir_remove(&d);
	}
	dcp_scan_finish(NULL);
}

/* clang-format off */
static const struct {
	const char *what, *names, *file, *text;
	const char *tags; /* "name=version ..." */
} tag_cases[] = {
	{ "a link to a version", "run/s1/COMMIT run/s2/COMMIT run/newest>s2", NULL, NULL, "newest=s2" },
	{ "a file with a name", "run/s1/COMMIT run/s2/COMMIT", "run/latest", "s1\n", "latest=s1" },
	{ "a file with a path", "run/s1/COMMIT run/s2/COMMIT", "run/latest-rank0.pt.symlink", "jobs/s2/",
	  "latest-rank0.pt.symlink=s2" },
	{ "a file with a number", "run/iter_0000010/COMMIT run/iter_0000005/COMMIT",
	  "run/latest_checkpointed_iteration.txt", "10", "latest_checkpointed_iteration.txt=iter_0000010" },
	{ "a version that is not there", "run/s1/COMMIT run/s2/COMMIT", "run/latest", "s3", "" },
	{ "an empty file", "run/s1/COMMIT run/s2/COMMIT", "run/latest", "", "" },
	{ "a file that holds something else", "run/s1/COMMIT run/s2/COMMIT", "run/notes", "s1", "" },
	{ "a loose file", "run/a.loose run/b.loose run/last.loose>b.loose", NULL, NULL,
	  "last.loose=b" },
	{ "the place of a run", "run/ckpt/s1/COMMIT run/ckpt/s2/COMMIT", "run/ckpt/latest", "s1", "latest=s1" },
	{ "a version that is a link to one of its name", "run/s1/COMMIT run/old/s0/COMMIT run/s0>old/s0", NULL,
	  NULL, "" },
	{ "an incomplete one has its name too", "run/s1/COMMIT run/s2/x.shard", "run/latest", "s2", "latest=s2" },
};
/* clang-format on */

static void tags_are_found(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(tag_cases); i++) {
		struct dcp_scan scan = { 0 };
		char got[512] = "";
		struct t_dir d;

		t_case(tag_cases[i].what);
		t_dir_make(&d, "test_scan");
		make(&d, tag_cases[i].names);
		if (tag_cases[i].file)
			t_dir_text(&d, tag_cases[i].file, tag_cases[i].text);
		assert_int_equal(dcp_scan(t_dir_path(&d, "run"), &scan, NULL), 0);
		for (size_t k = 0; k < scan.ntags; k++)
			snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s=%s",
				 k ? " " : "", scan.tags[k].name, scan.tags[k].version);
		assert_string_equal(got, tag_cases[i].tags);
		dcp_scan_finish(&scan);
		t_dir_remove(&d);
	}
}

/* clang-format off */
static const struct {
	const char *what, *names;
	const char *found; /* "name=where ...", those that are not complete in brackets */
} places[] = {
	{ "a run and its checkpoints", "run/logs/x run/checkpoints/s9/COMMIT run/checkpoints/s10/COMMIT "
	  "run/checkpoints/s11/x.shard", "s9=checkpoints/s9 s10=checkpoints/s10 [s11=checkpoints/s11]" },
	{ "files of them", "run/ckpt/s1.loose run/ckpt/s2.loose run/ckpt/s3/COMMIT",
	  "s1=ckpt s2=ckpt s3=ckpt/s3" },
	{ "beside others", "run/s1/COMMIT run/snapshots/s2/COMMIT", "s1=s1 s2=snapshots/s2" },
	{ "a name twice", "run/s1/COMMIT run/ckpts/s1/COMMIT", "s1@fake=ckpts/s1 s1=s1" },
	{ "the place is a checkpoint", "run/checkpoint/COMMIT run/checkpoint/s1/COMMIT",
	  "checkpoint=checkpoint" },
	{ "a link to the place", "run/old/s1/COMMIT run/ckpt>old", "s1=ckpt/s1" },
	{ "runs and their places", "run/a/checkpoints/s1/COMMIT run/a/checkpoints/latest>s1 run/b/s2/COMMIT "
	  "run/b/x.loose run/c/m.h5", "b@x=b [c=c] a@s1=a/checkpoints/s1 b@s2=b/s2" },
	{ "by their names not done", "run/s1/COMMIT run/tmp-s2/COMMIT run/s3.tmp/COMMIT",
	  "s1=s1 [tmp-s2=tmp-s2] [s3.tmp=s3.tmp]" },
};
/* clang-format on */

static void versions_deep_in_a_run_are_found(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(places); i++) {
		struct dcp_scan scan = { 0 };
		char got[512] = "";
		struct t_dir d;

		t_case(places[i].what);
		t_dir_make(&d, "test_scan");
		make(&d, places[i].names);
		assert_int_equal(dcp_scan(t_dir_path(&d, "run"), &scan, NULL), 0);
		for (size_t k = 0; k < scan.n; k++)
			snprintf(got + strlen(got), sizeof(got) - strlen(got),
				 scan.found[k].complete ? "%s%s=%s" : "%s[%s=%s]", k ? " " : "",
				 scan.found[k].name, scan.found[k].where);
		assert_string_equal(got, places[i].found);
		dcp_scan_finish(&scan);
		t_dir_remove(&d);
	}
}

static void the_mark_has_the_commit_time(void **state)
{
	const int64_t second = 1000000000, then = 1600000000 * second + 123456789;
	struct t_dir d;
	struct dcp_scan scan;
	struct dcp_err err = { 0 };

	(void)state;
	t_dir_make(&d, "test_scan");
	make(&d, "s1/COMMIT s1/x.shard s2/a.shard s2/b.shard");
	t_dir_touch(&d, "s1/COMMIT", then);
	t_dir_touch(&d, "s2/a.shard", then);
	t_dir_touch(&d, "s2/b.shard", then - second);
	assert_int_equal(dcp_scan(d.root, &scan, &err), 0);
	assert_int_equal(scan.found[0].commit_ns, then);
	assert_int_equal(scan.found[1].commit_ns, then); /* without a mark: the newest file */
	dcp_scan_finish(&scan);
	t_dir_remove(&d);
}

/* Versions without permission are reported; what is not named like one is ignored. */
static void locked_directories_are_reported(void **state)
{
	struct t_dir d;
	struct dcp_scan scan;
	struct dcp_err err = { 0 };
	bool root = geteuid() == 0;
	int code;

	(void)state;
	t_dir_make(&d, "test_scan");
	make(&d, "step-1/COMMIT step-2/COMMIT step-3/COMMIT lost+found/x alone/step-9/COMMIT");
	assert_int_equal(chmod(d.root, 0755), 0);
	assert_int_equal(chmod(t_dir_path(&d, "step-1"), 0755), 0);
	assert_int_equal(chmod(t_dir_path(&d, "step-1/COMMIT"), 0644), 0);
	assert_int_equal(chmod(t_dir_path(&d, "step-2"), 0), 0);
	assert_int_equal(chmod(t_dir_path(&d, "step-3"), 0444),
			 0); /* names alone are not enough */
	assert_int_equal(chmod(t_dir_path(&d, "lost+found"), 0), 0);
	assert_int_equal(chmod(t_dir_path(&d, "alone"), 0755), 0);
	assert_int_equal(chmod(t_dir_path(&d, "alone/step-9"), 0), 0);
	if (root) /* nothing is closed to root: be another user for a while */
		assert_int_equal(seteuid(65534), 0);
	if (faccessat(AT_FDCWD, d.root, X_OK, AT_EACCESS) <
	    0) { /* a root directory of mode 0700 */
		assert_int_equal(seteuid(0), 0);
		t_dir_remove(&d);
		skip();
	}
	code = dcp_scan(d.root, &scan, &err);
	assert_int_equal(dcp_scan(t_dir_path(&d, "alone"), &(struct dcp_scan){ 0 }, &err),
			 -EACCES);
	assert_non_null(strstr(err.msg, "alone/step-9: Permission denied"));
	if (root)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(code, 0);
	assert_int_equal(scan.n, 3);
	assert_true(scan.found[0].complete);
	assert_string_equal(scan.found[1].name, "step-2");
	assert_false(scan.found[1].complete);
	assert_string_equal(scan.found[1].why, "it cannot be opened: Permission denied");
	assert_string_equal(scan.found[2].name, "step-3");
	assert_false(scan.found[2].complete);
	dcp_scan_finish(&scan);
	assert_int_equal(chmod(t_dir_path(&d, "step-2"), 0755), 0);
	assert_int_equal(chmod(t_dir_path(&d, "step-3"), 0755), 0);
	assert_int_equal(chmod(t_dir_path(&d, "lost+found"), 0755), 0);
	assert_int_equal(chmod(t_dir_path(&d, "alone/step-9"), 0755), 0);
	t_dir_remove(&d);
}

/*
 * A link to a directory elsewhere that is named like a version is reported as one that is not
 * followed.
 */
static void links_out_are_reported(void **state)
{
	struct t_dir d;
	struct dcp_scan scan;
	struct dcp_err err = { 0 };

	(void)state;
	t_dir_make(&d, "test_scan");
	make(&d, "else/COMMIT run/step-1/COMMIT run/step-2>../else run/step-3>nowhere "
		 "run/other>../else run/step-4>../else/COMMIT run/step-5>step-1");
	assert_int_equal(dcp_scan(t_dir_path(&d, "run"), &scan, &err), 0);
	assert_int_equal(scan.n, 2);
	assert_string_equal(scan.found[0].name, "step-1");
	assert_string_equal(scan.found[1].name, "step-2");
	assert_false(scan.found[1].complete);
	assert_non_null(strstr(scan.found[1].why, "a link out of the source"));
	dcp_scan_finish(&scan);
	t_dir_remove(&d);
}

/* A file whose name says nothing. */
static void file_beginnings_are_known(void **state)
{
	/* clang-format off */
	static const struct {
		const char *bytes;
		size_t n;
		const char *says;
	} rows[] = {
		{ "PK\3\4....", 8, "begins like a zip archive: if torch.save wrote it, call it .pt" },
		{ "\x80\x04\x95.", 4, "begins like a pickle" },
		{ "\x10\0\0\0\0\0\0\0{\"a\":1}", 16, "begins like a safetensors file" },
		{ "GGUF\3\0\0\0", 8, "begins like a GGUF model" },
		{ "\x89HDF\r\n", 6, "begins like a HDF5 file" },
		{ "what", 4, "not a checkpoint by its name or its first bytes" },
		{ "", 0, "not a checkpoint by its name or its first bytes" },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_err err = { 0 };
		struct dcp_scan scan;
		struct t_dir d;

		t_case(rows[i].says);
		t_dir_make(&d, "test_scan");
		t_dir_put(&d, "weights", rows[i].bytes, rows[i].n);
		assert_int_equal(dcp_scan(t_dir_path(&d, "weights"), &scan, &err), -EINVAL);
		t_assert_says(&err, rows[i].says);
		t_dir_remove(&d);
	}
}

/* As long as nothing that a look depended on looks different, another is not needed. */
static void changes_need_another_look(void **state)
{
	static const struct {
		const char *what, *name, *text; /* without a text the file goes */
		bool differs;
	} rows[] = {
		{ "a file beside the versions", "run/note", "x", true },
		{ "a directory", "run/s3/y", "x", true },
		{ "a file of an incomplete version", "run/s2/y.shard", "x", true },
		{ "a commit mark goes", "run/s1/COMMIT", NULL, true },
		{ "one is written over", "run/s1/COMMIT", "\n\n", true },
		{ "a text that is a tag", "run/latest", "s2", true },
		{ "a shard of a complete version is written over", "run/s1/a.shard", "yy",
		  false },
		{ "a file that is none of a version", "run/logs/x", "more", false },
		{ "one in a directory that was not listed", "run/s1/deep/x", "y", false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		static const char *const dirs[] = { "run", "run/s1", "run/s2", "run/logs" };
		struct dcp_seen seen = { 0 };
		struct dcp_scan scan;
		uint64_t calls = 0;
		struct t_dir d;

		t_case(rows[i].what);
		t_dir_make(&d, "test_scan");
		t_dir_text(&d, "run/s1/COMMIT", "\n");
		t_dir_text(&d, "run/s1/a.shard", "x");
		t_dir_text(&d, "run/s1/deep/x", "x");
		t_dir_text(&d, "run/s2/x.shard", "x");
		t_dir_text(&d, "run/logs/x", "x");
		t_dir_text(&d, "run/latest", "s1 ");
		for (size_t k = 0; k < DCP_LEN(dirs); k++)
			t_dir_touch(&d, dirs[k], 1); /* or the clock may not have moved on */
		assert_int_equal(dcp_scan_seen(t_dir_path(&d, "run"), &seen, &scan, NULL), 0);
		assert_true(dcp_seen_same(&seen, &calls));
		assert_int_equal(calls, dcp_seen_count(&seen));
		assert_in_range(calls, 5, 8); /* 4 directories, COMMIT, latest */
		if (rows[i].text)
			t_dir_text(&d, rows[i].name, rows[i].text);
		else
			t_dir_delete(&d, rows[i].name);
		assert_int_equal(dcp_seen_same(&seen, &calls), !rows[i].differs);
		dcp_seen_finish(&seen);
		dcp_scan_finish(&scan);
		t_dir_remove(&d);
	}
}

/* What could not be opened for want of something may be there; more is not noted than a limit. */
static void looks_have_limits(void **state)
{
	static const struct {
		int code;
		bool lacks;
	} rows[] = { { -EMFILE, true },  { -ENFILE, true },  { -ENOMEM, true },
		     { -ENOENT, false }, { -EACCES, false }, { 3, false } };
	struct dcp_seen seen = { 0 };
	uint64_t calls = 0;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		seen.shortage = 0;
		assert_int_equal(dcp_seen_opening(&seen, rows[i].code), rows[i].code);
		assert_int_equal(seen.shortage, rows[i].lacks ? rows[i].code : 0);
	}
	for (int i = 0; i <= DCP_SEEN_MAX; i++) {
		char name[32];

		assert_false(seen.failed);
		snprintf(name, sizeof(name), "none/%d", i);
		dcp_seen_note(&seen, AT_FDCWD, NULL, name, false);
	}
	assert_true(seen.failed);
	assert_int_equal(dcp_seen_count(&seen), DCP_SEEN_MAX);
	assert_false(dcp_seen_same(&seen, &calls));
	dcp_seen_finish(&seen);
}

/* A source that is not there, or a file. */
static void looks_at_other_sources(void **state)
{
	struct dcp_seen seen = { 0 };
	struct dcp_scan scan;
	uint64_t calls = 0;
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "test_scan");
	assert_int_equal(dcp_scan_seen(t_dir_path(&d, "a.loose"), &seen, &scan, NULL), -ENOENT);
	assert_true(dcp_seen_same(&seen, &calls));
	t_dir_text(&d, "a.loose", "x");
	assert_false(dcp_seen_same(&seen, &calls));
	dcp_seen_finish(&seen);
	assert_int_equal(dcp_scan_seen(t_dir_path(&d, "a.loose"), &seen, &scan, NULL), 0);
	assert_true(dcp_seen_same(&seen, &calls));
	t_dir_text(&d, "other", "x");
	assert_true(dcp_seen_same(&seen, &calls));
	t_dir_text(&d, "a.loose", "xx");
	assert_false(dcp_seen_same(&seen, &calls));
	dcp_seen_finish(&seen);
	dcp_scan_finish(&scan);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(versions_are_found),
		cmocka_unit_test(tags_are_found),
		cmocka_unit_test(changes_need_another_look),
		cmocka_unit_test(looks_have_limits),
		cmocka_unit_test(looks_at_other_sources),
		cmocka_unit_test(file_beginnings_are_known),
		cmocka_unit_test(versions_deep_in_a_run_are_found),
		cmocka_unit_test(the_mark_has_the_commit_time),
		cmocka_unit_test(locked_directories_are_reported),
		cmocka_unit_test(links_out_are_reported),
	};
	return cmocka_run_group_tests_name("scan", tests, NULL, NULL);
}
