/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/text.h"
#include "fs/text/text.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/hf/hf.h"
#include "core/origin/dir/dir.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/layouts/layouts.h"
#include "fs/errors.h"
#include "fs/file/file.h"
#include "fs/fs.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

/* ---- index.json, index.jsonl ---- */

/* Describe every row of one kind, as array elements or as lines, those with statistics. */
static int put_rows(struct dcpfs_version *ver, enum dcp_row_kind kind, bool lines,
		    struct dcpfs_spool *s, struct dcp_jsonw *w, struct dcp_err *err)
{
	struct dcp_version *v = dcpfs_opened(ver);
	struct dcp_measures *known = lines ? dcpfs_measures(ver) : NULL;
	struct dcp_measured m;
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(v), kind, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		rc = kind == DCP_ROW_OBJECT
			     ? dcpfs_describe_object(v, &row, lines, w, err)
			     : dcpfs_describe_tensor(
				       v, &row,
				       known && dcp_measures_know(known, &row, &m) ? &m : NULL,
				       w, err);
		if (lines && rc == 0)
			dcp_buf_str(&s->buf, "\n");
		if (rc == 0)
			rc = dcpfs_spool_flush(s, false);
	}
	return rc;
}

static int make_index(struct dcpfs_version *ver, bool lines, struct dcpfs_spool *s,
		      struct dcp_err *err)
{
	struct dcp_jsonw w;
	int rc;

	dcp_jsonw_init(&w, &s->buf, false);
	if (lines) {
		rc = put_rows(ver, DCP_ROW_TENSOR, true, s, &w, err);
		return rc < 0 ? rc : put_rows(ver, DCP_ROW_OBJECT, true, s, &w, err);
	}
	dcp_jsonw_object(&w);
	dcpfs_describe_version(dcpfs_opened(ver), &w);
	dcp_jsonw_put_array(&w, "tensors");
	rc = put_rows(ver, DCP_ROW_TENSOR, false, s, &w, err);
	dcp_jsonw_end(&w);
	dcp_jsonw_put_array(&w, "objects");
	if (rc == 0)
		rc = put_rows(ver, DCP_ROW_OBJECT, false, s, &w, err);
	dcp_jsonw_end(&w);
	dcp_jsonw_end(&w);
	dcp_buf_str(&s->buf, "\n");
	return rc ? rc : dcp_jsonw_error(&w);
}

/* ---- README.txt ---- */

static void make_readme(const struct dcpfs *fs, const struct dcpfs_version *ver,
			struct dcp_buf *b)
{
	const char *why = dcpfs_version_refusal(ver);
	const struct dcp_index_counts *n;
	char name[NAME_MAX + 1];

	snprintf(name, sizeof(name), "%s", ver->name);
	dcp_printable(name, sizeof(name));

	if (!dcpfs_opened(ver)) {
		dcp_buf_printf(b, "%s cannot be shown: %s\n", name,
			       why ? why : "it was not opened yet");
		return;
	}
	n = dcp_index_counts(dcpfs_index(ver));
	dcp_buf_printf(
		b,
		"%s: %llu tensor%s (%llu byte%s) and %llu object%s, read from %s.\n"
		"Served by dcpfs %s from %s; nothing was converted or copied.\n"
		"\n"
		"index.json        every key: dtype, shape, file names, where its bytes are "
		"stored\n"
		"index.jsonl       the same, one line a key (jq, DuckDB)\n"
		"npy/KEY.npy       numbers for numpy.load; bf16 and fp8 widened to float32, "
		"exactly\n"
		"raw/KEY.bin       the stored values: row-major, little-endian, no header\n"
		"safetensors/      one tensor a file, true dtype\n"
		"stats/KEY.json    minimum, mean, NaN and so on, measured when it is read\n"
		"objects/KEY.json  everything that is not a tensor, decoded, never executed\n"
		"shard/LAYOUT/RANK what a rank of a parallel job holds: fsdp8, tp4:llama, "
		"yours\n"
		"hf/               a Hugging Face model: from_pretrained, vllm serve\n"
		"\n"
		"In file names %%2F stands for '/', %%25 for '%%'; index.json has the full "
		"key.\n",
		name, (unsigned long long)n->tensors, dcp_s(n->tensors),
		(unsigned long long)n->bytes, dcp_s(n->bytes), (unsigned long long)n->objects,
		dcp_s(n->objects), dcp_version_format(dcpfs_opened(ver))->what, DCP_RELEASE,
		fs->opts.source);
	if (dcp_index_meta(dcpfs_index(ver), "inferred"))
		dcp_buf_printf(b, "\nNote: %s.\n",
			       dcp_index_meta(dcpfs_index(ver), "inferred"));
	if (dcp_index_meta(dcpfs_index(ver), "left_out"))
		dcp_buf_printf(b, "\nLeft out, as dcpfs does not read it: %s.\n",
			       dcp_index_meta(dcpfs_index(ver), "left_out"));
	if (n->broken)
		dcp_buf_printf(b,
			       "%llu key%s cannot be read: see .dcpfs/errors.json at the "
			       "mount's root.\n",
			       (unsigned long long)n->broken, dcp_s(n->broken));
}

/* ---- .dcpfs/ ---- */

static void put_time(struct dcp_jsonw *w, const char *key, int64_t ns)
{
	time_t s = dcp_file_time(ns).tv_sec;
	char text[32];
	struct tm tm;

	gmtime_r(&s, &tm);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	dcp_jsonw_put_str(w, key, text);
}

static void put_version(struct dcp_jsonw *w, const struct dcpfs_version *ver)
{
	struct dcp_version *v = dcpfs_opened(ver);

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "version", ver->name);
	dcp_jsonw_put_str(w, "format", ver->found.format->name);
	put_time(w, "committed", ver->found.commit_ns);
	dcp_jsonw_put_str(w, "state",
			  v                            ? "ready"
			  : dcpfs_version_refusal(ver) ? "refused"
						       : "not opened yet");
	if (v) {
		const struct dcp_index_counts *n = dcp_index_counts(dcp_version_index(v));

		dcp_jsonw_put_u64(w, "tensors", n->tensors);
		dcp_jsonw_put_u64(w, "objects", n->objects);
		dcp_jsonw_put_u64(w, "broken", n->broken);
		dcp_jsonw_put_u64(w, "nbytes", n->bytes);
		dcp_jsonw_put_str_or_null(w, "index", dcp_version_index_path(v));
	}
	dcp_jsonw_end(w);
}

static void make_status(struct dcpfs *fs, struct dcp_jsonw *w)
{
	struct dcpfs_version *ver;
	char latest[NAME_MAX + 1];

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "dcpfs", DCP_RELEASE);
	dcp_jsonw_put_str(w, "source", fs->opts.source);
	dcp_jsonw_put_u64(w, "pid", (uint64_t)getpid());
	put_time(w, "mounted", (int64_t)fs->started.tv_sec * 1000000000);
	dcp_jsonw_put_str_or_null(
		w, "latest",
		dcpfs_slot_name(fs, dcpfs_latest(fs), latest, sizeof(latest)) == 0 ? latest
										   : NULL);
	dcp_jsonw_put_array(w, "versions");
	for (uint64_t place = 0; (ver = dcpfs_version_behind(fs, place));) {
		place = ver->place;
		put_version(w, ver);
		dcpfs_version_put(ver);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

struct broken {
	const struct dcpfs_version *ver;
	struct dcp_jsonw *w;
};

static void put_error(const struct broken *b, const char *key, const char *why)
{
	dcp_jsonw_object(b->w);
	dcp_jsonw_put_str(b->w, "version", b->ver->name);
	dcp_jsonw_put_str_or_null(b->w, "key", key);
	dcp_jsonw_put_str_or_null(b->w, "error", why);
	dcp_jsonw_put_u64(b->w, "count", 0);
	dcp_jsonw_end(b->w);
}

static int put_broken(void *ctx, const struct dcp_row *row, const char *why)
{
	put_error(ctx, row->key, why);
	return 0;
}

/* Incomplete models, and keys that the index knows to be broken; failures at run time come from
 * fs/errors.c. */
static void put_all_broken(const struct dcpfs_version *ver, struct dcp_jsonw *w)
{
	struct broken b = { ver, w };
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;

	if (!ver || !dcpfs_opened(ver))
		return;
	if (dcp_hf_fit(dcpfs_opened(ver), &why, NULL) >= DCP_MISFIT)
		put_error(&b, NULL, why.p);
	if (!dcp_index_counts(dcpfs_index(ver))->broken)
		return;
	dcpfs_describe_broken(dcpfs_opened(ver), DCP_ROW_TENSOR, put_broken, &b);
	dcpfs_describe_broken(dcpfs_opened(ver), DCP_ROW_OBJECT, put_broken, &b);
}

static void make_errors(struct dcpfs *fs, struct dcp_jsonw *w)
{
	struct dcpfs_version *ver;

	dcp_jsonw_array(w);
	for (uint64_t place = 0; (ver = dcpfs_version_behind(fs, place));) {
		struct dcpfs_version *hf = dcpfs_hf_find(fs, ver);

		place = ver->place;
		put_all_broken(ver, w);
		put_all_broken(hf, w);
		dcpfs_version_put(hf);
		dcpfs_version_put(ver);
	}
	dcpfs_errors_write(fs->errors, w);
	dcp_jsonw_end(w);
}

static void put_incomplete(struct dcp_jsonw *w, const char *version, const char *format,
			   const char *reason)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "version", version);
	dcp_jsonw_put_str(w, "format", format);
	dcp_jsonw_put_str_or_null(w, "reason", reason);
	dcp_jsonw_end(w);
}

static void make_incomplete(struct dcpfs *fs, struct dcp_jsonw *w)
{
	dcp_jsonw_array(w);
	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = 0; i < fs->scan.n; i++)
		if (!fs->scan.found[i].complete)
			put_incomplete(w, fs->scan.found[i].name,
				       fs->scan.found[i].format->name, fs->scan.found[i].why);
	for (size_t i = 0; i < fs->nversions; i++) {
		const struct dcpfs_version *ver = fs->versions[i];

		if (dcpfs_version_refusal(ver))
			put_incomplete(w, ver->name, ver->found.format->name,
				       dcpfs_version_refusal(ver));
	}
	pthread_rwlock_unlock(&fs->lock);
	dcp_jsonw_end(w);
}

static void put_layouts(const struct dcpfs *fs, struct dcp_jsonw *w)
{
	const struct dcp_named_layout *l;

	dcp_jsonw_put_array(w, "layouts");
	for (size_t i = 0; (l = dcp_layouts_at(fs->layouts, i)); i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "name", l->name);
		dcp_jsonw_put_str(w, "file", l->file);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void make_config(const struct dcpfs *fs, struct dcp_jsonw *w)
{
	const struct dcpfs_opts *o = &fs->opts;

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "source", o->source);
	dcp_jsonw_put_str_or_null(w, "mountpoint", o->mountpoint);
	dcp_jsonw_put_str_or_null(w, "cache", o->store.cache_dir);
	dcp_jsonw_put_str_or_null(w, "index", o->store.index_file);
	dcp_jsonw_put_str(w, "io", o->store.no_map ? "pread" : "mmap");
	dcp_jsonw_put_str_or_null(w, "log", o->log_to);
	dcp_jsonw_put_u64(w, "threads", o->threads);
	dcp_jsonw_put_u64(w, "readahead_kib", o->readahead_kib);
	dcp_jsonw_put_u64(w, "passthrough_mib", o->passthrough_mib);
	dcp_jsonw_put_bool(w, "no_open", o->no_open);
	dcp_jsonw_put_bool(w, "allow_other", o->allow_other);
	put_layouts(fs, w);
	dcp_jsonw_put_str_or_null(w, "hf_rules",
				  o->hf_rules ? dcp_rules_name(o->hf_rules) : NULL);
	dcp_jsonw_put_str_or_null(w, "hf_assets", o->hf_assets);
	dcp_jsonw_put_str_or_null(w, "hf_from", o->hf_part);
	dcp_jsonw_put_str_or_null(w, "hf_dtype",
				  o->hf_dtype ? dcp_dtype_info(o->hf_dtype)->name : NULL);
	dcp_jsonw_put_u64(w, "hf_shard_size", o->hf_shard_size);
	dcp_jsonw_end(w);
}

/* Entries of /proc/self/fd but for that of the listing itself; 0: it cannot be listed. */
static uint64_t count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n > 3 ? n - 3 : 0; /* with . and .. */
}

/* Bytes of this process that are in memory; 0: not known. */
static uint64_t count_memory(void)
{
	dcp_auto_file FILE *f = fopen("/proc/self/statm", "re");
	unsigned long long whole, resident;

	if (!f || fscanf(f, "%llu %llu", &whole, &resident) != 2)
		return 0;
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

void dcpfs_text_metrics(struct dcpfs *fs, struct dcp_buf *out)
{
	struct dcpfs_gauges g = { .source = fs->opts.source,
				  .release = DCP_RELEASE,
				  .started = (uint64_t)fs->started.tv_sec,
				  .failures = dcpfs_errors_count(fs->errors),
				  .cached_files = dcpfs_cache_count(fs),
				  .descriptors = count_descriptors(),
				  .memory = count_memory() };

	pthread_rwlock_rdlock(&fs->lock);
	g.versions = fs->nversions;
	for (size_t i = 0; i < fs->nversions; i++) {
		const struct dcpfs_version *ver = fs->versions[i];
		struct dcp_version *v = dcpfs_opened(ver);

		g.versions_open += v != NULL;
		g.versions_refused += dcpfs_version_refusal(ver) != NULL;
		g.broken_keys += v ? dcp_index_counts(dcp_version_index(v))->broken : 0;
		g.open_files += __atomic_load_n(&ver->open, __ATOMIC_RELAXED);
	}
	for (size_t i = 0; i < fs->scan.n; i++)
		g.versions_incomplete += !fs->scan.found[i].complete;
	pthread_rwlock_unlock(&fs->lock);
	dcpfs_stats_metrics(&fs->stats, &g, out);
}

/* README files are also read on a terminal, so spell control characters. */
static int make_shown(struct dcpfs_spool *s)
{
	dcp_auto_buf struct dcp_buf page = s->buf;

	s->buf = (struct dcp_buf)DCP_BUF_INIT;
	return dcp_buf_error(&page) ? -ENOMEM : dcp_buf_shown(&s->buf, page.p, page.n, "\n");
}

int dcpfs_text_make(struct dcpfs *fs, struct dcpfs_version *ver, struct dcpfs_ino ino,
		    struct dcpfs_text *out, struct dcp_err *err)
{
	struct dcpfs_spool s = DCPFS_SPOOL_INIT(fs->opts.store.cache_dir);
	enum dcpfs_kind kind = ino.kind;
	struct dcp_jsonw w;
	int rc = 0;

	dcp_jsonw_init(&w, &s.buf, true);
	if (kind == DCPFS_README)
		make_readme(fs, ver, &s.buf);
	else if (kind == DCPFS_INDEX_JSON)
		rc = dcpfs_is_rank(ver) ? dcpfs_share_index(ver, &s)
					: make_index(ver, false, &s, err);
	else if (kind == DCPFS_INDEX_JSONL)
		rc = make_index(ver, true, &s, err);
	else if (kind == DCPFS_HF_README)
		rc = dcpfs_hf_readme(fs, ver, &s, err);
	else if (kind == DCPFS_HF_INDEX)
		rc = dcpfs_hf_weight_map(ver, &s, err);
	else if (kind == DCPFS_HF_MADE)
		rc = dcpfs_hf_made(ver, ino.row, &s);
	else if (kind == DCPFS_LAYOUT_JSON)
		rc = dcpfs_share_layout(fs, ver, ino.row, &s, err);
	else if (kind == DCPFS_PLAN_JSON)
		rc = dcpfs_share_plan(ver, &s);
	else if (kind == DCPFS_STATUS)
		make_status(fs, &w);
	else if (kind == DCPFS_ERRORS)
		make_errors(fs, &w);
	else if (kind == DCPFS_INCOMPLETE)
		make_incomplete(fs, &w);
	else if (kind == DCPFS_CONFIG)
		make_config(fs, &w);
	else if (kind == DCPFS_STATS)
		dcpfs_stats_text(&fs->stats, &s.buf);
	else if (kind == DCPFS_METRICS)
		dcpfs_text_metrics(fs, &s.buf);
	else if (kind == DCPFS_LOG)
		dcpfs_log_text(fs->log, &s.buf);
	else
		rc = -ENOENT;
	if (rc == 0 && (kind == DCPFS_README || kind == DCPFS_HF_README))
		rc = make_shown(&s);
	if (rc == 0 && dcpfs_node(fs, kind)->live && kind != DCPFS_STATS &&
	    kind != DCPFS_METRICS && kind != DCPFS_LOG)
		dcp_buf_str(&s.buf, "\n");
	return rc == 0 ? dcpfs_spool_finish(&s, out) : dcpfs_spool_drop(&s, rc);
}
