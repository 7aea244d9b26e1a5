/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/trust.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/jsonw.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/origin/origin.h"
#include "core/parse/json.h"

enum { CHUNK = 256 << 10, MOST_TEXT = 256 << 20, MOST_PATH = 4096 };

#define NAME "model.sig"
#define WHOLE UINT64_MAX

/* A file, or bytes [lo, hi) of it, as the manifest lists it. */
struct resource {
	const char *path; /* below the source */
	uint64_t lo, hi;  /* hi WHOLE: to its end */
	enum dcp_filehash_kind kind;
	uint8_t digest[DCP_FILEHASH_MOST];
};

struct manifest {
	struct signed_files *w;
	struct dcp_site site; /* of the source */
	bool one;             /* the version is one file: files beside it are not part of it */
	char name[MOST_PATH];
	size_t nabove;      /* bytes of the directory's path, with which paths of files begin */
	struct dcp_buf all; /* struct resource */
	struct dcp_buf skip; /* ignored paths: texts, each with its NUL */
	struct dcp_buf own;  /* const char *, sorted: paths of the version's files */
	struct dcp_arena arena;

	pthread_mutex_t lock;
	size_t next; /* atomic, as those below */
	uint64_t done;
	int64_t start_ns;
	int rc;
};

static void tell_bad(struct manifest *m, const char *file, uint64_t off, uint64_t n,
		     const char *why)
{
	pthread_mutex_lock(&m->lock);
	m->w->bad(m->w->ctx, &(struct signed_bad){ file, off, n, why });
	pthread_mutex_unlock(&m->lock);
}

static void tell_manifest(struct manifest *m, const char *why)
{
	tell_bad(m, m->name, 0, 0, why);
}

/* ---- which files are the version's ---- */

/* The path of file @i of the version below the source. */
static int path_of(const struct pick *p, const char *name, char *out)
{
	const char *where = p->ck.found->where;
	int n = snprintf(out, MOST_PATH, "%s%s%s", where, *where ? "/" : "", name);

	return n < 0 || n >= MOST_PATH ? -ENAMETOOLONG : 0;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int list_own(struct manifest *m)
{
	size_t n;
	const struct dcp_file_id *files = dcp_index_files(dcp_version_index(m->w->p->ck.v), &n);
	char text[MOST_PATH];
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		const char *path;

		if (path_of(m->w->p, files[i].name, text) < 0)
			continue;
		path = dcp_arena_strdup(&m->arena, text);
		rc = path ? dcp_buf_add(&m->own, &path, sizeof(path)) : -ENOMEM;
	}
	DCP_SORT(DCP_ITEMS(m->own, const char *), DCP_NITEMS(m->own, const char *), by_text);
	return rc;
}

/* Is @path a file of this version? Files of other versions in the directory are ignored. */
static bool is_ours(const struct manifest *m, const char *path)
{
	const struct dcp_found *found = m->w->p->ck.found;
	size_t above = strlen(found->where);

	if (above && (strncmp(path, found->where, above) != 0 || path[above] != '/'))
		return false;
	if (!found->group && !found->loose && !m->one)
		return true;
	return DCP_FIND(&path, DCP_ITEMS(m->own, const char *),
			DCP_NITEMS(m->own, const char *), by_text) != NULL;
}

/* ---- the manifest ---- */

/* "config.json:300:600": the part after the last two colons. */
static bool cut_part(char *name, uint64_t *lo, uint64_t *hi)
{
	char *second = strrchr(name, ':'), *first;
	const char *p;

	if (!second)
		return false;
	*second = '\0';
	first = strrchr(name, ':');
	if (!first)
		return false;
	*first = '\0';
	p = first + 1;
	if (!dcp_take_number(&p, NULL, 19, lo) || *p)
		return false;
	p = second + 1;
	return dcp_take_number(&p, NULL, 19, hi) && !*p && *lo <= *hi;
}

static int take_resource(struct manifest *m, const char *name, const char *algorithm,
			 const char *hex, bool parts, struct dcp_filehash *root)
{
	struct resource r = { .hi = WHOLE };
	const char *dash = strchr(algorithm, '-');
	size_t n = strlen(hex) / 2;
	char text[MOST_PATH], why[200];
	int len = snprintf(text, sizeof(text), "%.*s%s", (int)m->nabove, m->name, name);

	r.kind = dcp_filehash_named(algorithm,
				    dash ? (size_t)(dash - algorithm) : strlen(algorithm));
	if (strlen(hex) % 2 || n > sizeof(r.digest) || n == 0)
		return -EBADMSG;
	for (size_t i = 0; i < n; i++) {
		int high = dcp_hex_digit(hex[2 * i]), low = dcp_hex_digit(hex[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EBADMSG;
		r.digest[i] = (uint8_t)(high << 4 | low);
	}
	if (root)
		dcp_filehash_add(root, r.digest, n);
	if (len < 0 || (size_t)len >= sizeof(text) ||
	    (parts && !cut_part(text, &r.lo, &r.hi)) ||
	    dcp_site_check_name(text + m->nabove, NULL) < 0) {
		snprintf(why, sizeof(why), "it lists %.100s, which names no file below it",
			 name);
		tell_manifest(m, why);
		return 0;
	}
	if (!is_ours(m, text))
		return 0;
	if (r.kind == DCP_FILEHASH_NONE && m->w->unknown++ == 0)
		snprintf(m->w->algorithm, sizeof(m->w->algorithm), "%s", algorithm);
	else if (r.kind != DCP_FILEHASH_NONE && dcp_filehash_size(r.kind) != n)
		return -EBADMSG;
	r.path = dcp_arena_strdup(&m->arena, text);
	return r.path ? dcp_buf_add(&m->all, &r, sizeof(r)) : -ENOMEM;
}

/* The form before 1.0: each file is a subject, and nothing else is listed. */
static int take_subjects(struct manifest *m, const struct dcp_json *subjects)
{
	int rc = dcp_json_len(subjects) ? 0 : -EBADMSG;

	for (size_t i = 0; rc == 0 && i < dcp_json_len(subjects); i++) {
		const struct dcp_json *s = dcp_json_at(subjects, i);
		const char *name = dcp_json_str(dcp_json_get(s, "name"));
		const char *hex =
			dcp_json_str(dcp_json_get(dcp_json_get(s, "digest"), "sha256"));

		rc = name && hex ? take_resource(m, name, "sha256", hex, false, NULL)
				 : -EBADMSG;
	}
	return rc;
}

static int take_ignored(struct manifest *m, const struct dcp_json *paths)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dcp_json_len(paths); i++) {
		const char *path = dcp_json_str(dcp_json_at(paths, i));

		if (path)
			rc = dcp_buf_add(&m->skip, path, strlen(path) + 1);
	}
	return rc;
}

static int take_predicate(struct manifest *m, const struct dcp_json *statement)
{
	const struct dcp_json *predicate = dcp_json_get(statement, "predicate");
	const struct dcp_json *how = dcp_json_get(predicate, "serialization");
	const struct dcp_json *all = dcp_json_get(predicate, "resources");
	const struct dcp_json *subjects = dcp_json_get(statement, "subject");
	const char *method = dcp_json_str(dcp_json_get(how, "method"));
	const char *want = dcp_json_str(
		dcp_json_get(dcp_json_get(dcp_json_at(subjects, 0), "digest"), "sha256"));
	bool parts = method && strcmp(method, "shards") == 0;
	struct dcp_filehash *root;
	uint8_t digest[DCP_FILEHASH_MOST];
	char text[2 * DCP_FILEHASH_MOST + 1];
	int rc;

	if (!method || (!parts && strcmp(method, "files") != 0) || !dcp_json_is_array(all) ||
	    dcp_json_len(subjects) != 1 || !want)
		return -EBADMSG;
	root = dcp_filehash_new(DCP_FILEHASH_SHA256);
	rc = root ? take_ignored(m, dcp_json_get(how, "ignore_paths")) : -ENOMEM;
	for (size_t i = 0; rc == 0 && i < dcp_json_len(all); i++) {
		const struct dcp_json *r = dcp_json_at(all, i);
		const char *name = dcp_json_str(dcp_json_get(r, "name"));
		const char *algorithm = dcp_json_str(dcp_json_get(r, "algorithm"));
		const char *hex = dcp_json_str(dcp_json_get(r, "digest"));

		rc = name && algorithm && hex
			     ? take_resource(m, name, algorithm, hex, parts, root)
			     : -EBADMSG;
	}
	if (!root)
		return rc;
	dcp_filehash_end(root, digest);
	for (size_t i = 0; i < dcp_filehash_size(DCP_FILEHASH_SHA256); i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
	if (rc == 0 && strcmp(text, want) != 0)
		tell_manifest(m, "the digest of its list is not the digest that it "
				 "states: it was changed");
	return rc;
}

/* 1: it cannot be used, which was reported. */
static int take_statement(struct manifest *m, const struct dcp_json *statement)
{
	const char *type = dcp_json_str(dcp_json_get(statement, "_type"));
	const char *predicate = dcp_json_str(dcp_json_get(statement, "predicateType"));
	char why[300];

	if (!type || strcmp(type, "https://in-toto.io/Statement/v1") != 0 || !predicate)
		return -EBADMSG;
	if (strcmp(predicate, "https://model_signing/signature/v1.0") == 0)
		return take_predicate(m, statement);
	if (strcmp(predicate, "https://model_signing/Digests/v0.1") == 0)
		return take_subjects(m, dcp_json_get(statement, "subject"));
	snprintf(why, sizeof(why),
		 "its statement is a %.100s, which is not known: expected "
		 "https://model_signing/signature/v1.0",
		 predicate);
	tell_manifest(m, why);
	return 1;
}

static int take_bundle(struct manifest *m, const struct dcp_json *bundle, struct dcp_err *err)
{
	const struct dcp_json *envelope = dcp_json_get(bundle, "dsseEnvelope");
	const char *type = dcp_json_str(dcp_json_get(envelope, "payloadType"));
	const char *payload = dcp_json_str(dcp_json_get(envelope, "payload"));
	dcp_auto_json struct dcp_json *statement = NULL;
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = payload && type && strcmp(type, "application/vnd.in-toto+json") == 0
			 ? dcp_base64_read(payload, strlen(payload), &text)
			 : -EBADMSG;

	if (rc == 0)
		rc = dcp_json_parse(text.p, text.n, &statement, err);
	return rc == 0 ? take_statement(m, statement) : rc;
}

/* 1: there is one; 0: there is none, or it cannot be used. */
static int read_manifest(struct manifest *m)
{
	dcp_auto_blob struct dcp_blob blob = { 0 };
	dcp_auto_json struct dcp_json *bundle = NULL;
	struct dcp_err err = { 0 };
	struct dcp_source src;
	char why[sizeof(err.msg) + 64];
	int rc = dcp_site_open(&m->site, m->name, &blob, NULL, &err);

	if (rc == -ENOENT)
		return 0;
	if (rc == 0) {
		src = dcp_source_blob(&blob);
		rc = dcp_json_read(&src, MOST_TEXT, NULL, &bundle, &err);
	}
	if (rc == 0)
		rc = list_own(m);
	if (rc == 0)
		rc = take_bundle(m, bundle, &err);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0 && rc != -EBADMSG) {
		snprintf(why, sizeof(why), "it cannot be read: %s",
			 err.msg[0] ? err.msg : dcp_err_noted(rc));
		tell_manifest(m, why);
	} else if (rc < 0) {
		tell_manifest(m,
			      "it is no manifest of model-signing: expected a sigstore bundle "
			      "with an in-toto statement that lists files and digests");
	}
	m->w->manifests++;
	return rc == 0;
}

/* ---- the files ---- */

static int hash_blob(struct manifest *m, const struct dcp_blob *blob, const struct resource *r,
		     uint64_t end, uint8_t *buf, uint8_t *out)
{
	struct dcp_filehash *h = dcp_filehash_new(r->kind);
	int rc = h ? 0 : -ENOMEM;

	for (uint64_t at = r->lo; rc == 0 && at < end;) {
		size_t n = (size_t)DCP_MIN((uint64_t)CHUNK, end - at);

		rc = dcp_blob_read(blob, at, buf, n);
		if (rc == 0)
			dcp_filehash_add(h, buf, n);
		walk_wait_for_rate(m->start_ns, m->w->rate,
				   __atomic_add_fetch(&m->done, n, __ATOMIC_RELAXED));
		at += n;
	}
	if (h)
		dcp_filehash_end(h, out);
	return rc;
}

static int check_resource(struct manifest *m, const struct resource *r, uint8_t *buf)
{
	dcp_auto_blob struct dcp_blob blob = { 0 };
	uint8_t digest[DCP_FILEHASH_MOST];
	struct dcp_err err = { 0 };
	int rc = dcp_site_open(&m->site, r->path, &blob, NULL, &err);
	uint64_t size = rc == 0 ? dcp_blob_size(&blob) : 0;
	uint64_t end = r->hi == WHOLE ? size : r->hi;
	char why[200];

	if (rc == 0 && end > size) {
		snprintf(why, sizeof(why),
			 NAME " lists bytes up to %" PRIu64 ", and it has %" PRIu64, end, size);
		tell_bad(m, r->path, r->lo, end - r->lo, why);
		return 0;
	}
	if (rc == 0)
		rc = hash_blob(m, &blob, r, end, buf, digest);
	if (rc == -ENOMEM)
		return rc;
	if (rc == -ENOENT)
		tell_bad(m, r->path, 0, 0, NAME " lists it, and it is not there");
	else if (rc < 0)
		tell_bad(m, r->path, 0, 0, err.msg[0] ? err.msg : dcp_err_noted(rc));
	else if (memcmp(digest, r->digest, dcp_filehash_size(r->kind)) != 0)
		tell_bad(m, r->path, r->lo, end - r->lo,
			 "its bytes have not the digest that " NAME " lists");
	else
		__atomic_add_fetch(&m->w->agree, 1, __ATOMIC_RELAXED);
	return 0;
}

static void *check_next(void *ctx)
{
	struct manifest *m = ctx;
	dcp_auto_free uint8_t *buf = malloc(CHUNK);
	size_t n = DCP_NITEMS(m->all, struct resource), i;

	if (!buf)
		__atomic_store_n(&m->rc, -ENOMEM, __ATOMIC_RELAXED);
	while (buf && (i = __atomic_fetch_add(&m->next, 1, __ATOMIC_RELAXED)) < n) {
		const struct resource *r = &DCP_ITEMS(m->all, struct resource)[i];
		int rc = r->kind == DCP_FILEHASH_NONE ? 0 : check_resource(m, r, buf);

		if (rc < 0)
			__atomic_store_n(&m->rc, rc, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* ---- is every byte listed? ---- */

static int by_place(const void *a, const void *b)
{
	const struct resource *x = a, *y = b;
	int c = strcmp(x->path, y->path);

	return c ? c : DCP_CMP(x->lo, y->lo);
}

static bool is_ignored(const struct manifest *m, const char *path)
{
	const char *name = path + m->nabove;

	for (size_t at = 0; at < m->skip.n; at += strlen(m->skip.p + at) + 1) {
		const char *skip = m->skip.p + at;
		size_t n = strlen(skip);

		if (strncmp(name, skip, n) == 0 && (name[n] == '\0' || name[n] == '/'))
			return true;
	}
	return strcmp(path, m->name) == 0;
}

/* Report bytes of the version's file @path that the manifest does not list. */
static void check_covered(struct manifest *m, const char *path, uint64_t size)
{
	const struct resource *all = DCP_ITEMS(m->all, struct resource);
	size_t n = DCP_NITEMS(m->all, struct resource), i;
	const struct resource from = { .path = path };
	uint64_t end = 0;

	DCP_BISECT(i, 0, n, by_place(&all[i], &from) < 0);
	if (is_ignored(m, path) ||
	    (i < n && strcmp(all[i].path, path) == 0 && all[i].hi == WHOLE))
		return;
	if (i == n || strcmp(all[i].path, path) != 0) {
		tell_bad(m, path, 0, 0, NAME " does not list it");
		return;
	}
	for (; i < n && strcmp(all[i].path, path) == 0 && all[i].lo <= end; i++)
		end = DCP_MAX(end, all[i].hi);
	if (end < size)
		tell_bad(m, path, end, size - end, NAME " does not list these bytes of it");
}

static void check_all_covered(struct manifest *m)
{
	const struct pick *p = m->w->p;
	size_t n;
	const struct dcp_file_id *files = dcp_index_files(dcp_version_index(p->ck.v), &n);
	char path[MOST_PATH];

	for (size_t i = 0; i < n; i++)
		if (files[i].ino && path_of(p, files[i].name, path) == 0)
			check_covered(m, path, files[i].size);
}

static int check_manifest(struct manifest *m)
{
	int rc = read_manifest(m);

	if (rc <= 0)
		return rc;
	DCP_SORT(DCP_ITEMS(m->all, struct resource), DCP_NITEMS(m->all, struct resource),
		 by_place);
	/* A manifest above the version may be about other versions only. */
	if (DCP_NITEMS(m->all, struct resource) ||
	    m->nabove >= strlen(m->w->p->ck.found->where))
		check_all_covered(m);
	dcp_team_run(walk_count_jobs(m->w->jobs), check_next, m, 0);
	return m->rc;
}

/* Check a manifest in the directory at the first @n bytes of the version's path. */
static int check_at(struct signed_files *w, const struct dcp_site *site, bool one, size_t n)
{
	struct manifest m = { .w = w,
			      .site = *site,
			      .one = one,
			      .arena = DCP_ARENA_INIT((size_t)1 << 32),
			      .start_ns = dcp_now_ns(CLOCK_MONOTONIC) };
	int len = snprintf(m.name, sizeof(m.name), "%.*s%s" NAME, (int)n, w->p->ck.found->where,
			   n ? "/" : "");
	int rc = 0;

	if (len < 0 || (size_t)len >= sizeof(m.name))
		return 0;
	m.nabove = (size_t)len - strlen(NAME);
	pthread_mutex_init(&m.lock, NULL);
	rc = check_manifest(&m);
	pthread_mutex_destroy(&m.lock);
	dcp_buf_finish(&m.all);
	dcp_buf_finish(&m.skip);
	dcp_buf_finish(&m.own);
	dcp_arena_finish(&m.arena);
	return rc;
}

int signed_check(struct signed_files *w)
{
	const char *where = w->p->ck.found->where;
	dcp_auto_free char *only = NULL;
	struct dcp_site site;
	char count[32];
	int rc = dcp_site_find(w->p->ck.source, &site, &only, NULL);

	if (rc < 0)
		return rc == -ENOMEM ? rc : 0; /* opening it has reported the error */
	rc = check_at(w, &site, only, 0);
	for (size_t n = 1; rc == 0 && *where && n <= strlen(where); n++)
		if (where[n] == '/' || !where[n])
			rc = check_at(w, &site, only, n);
	dcp_site_close(&site);
	if (w->unknown)
		cmd_warn("%s: " NAME ": %s digests are by %s, which is not known here "
			 "(known: sha256, blake2b): these files were not compared with it",
			 w->p->ck.name, out_count(count, w->unknown), w->algorithm);
	return rc;
}
