/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/torch/torch_int.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/archive/archive.h"
#include "core/parse/parse.h"

enum { MEMORY_DEFAULT = 192 << 20 };

static int read_headed(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	const struct dcp_torch *t = (const struct dcp_torch *)(const void *)src;

	if (dcp_range_ok(off, n, t->head_n)) {
		memcpy(buf, t->head + off, n);
		return 0;
	}
	return t->under->read(t->under, off, buf, n);
}

/* ---- the zip container ---- */

/* The records with a meaning of their own, by their name after the prefix. */
struct archive {
	const struct dcp_zip_member *pickle, *byteorder;
	size_t ndata;
};

static const char *behind_prefix(const struct dcp_zip_member *m, const char *prefix, size_t n)
{
	return strncmp(m->name, prefix, n) == 0 ? m->name + n : NULL;
}

static bool is_storage(const char *name)
{
	return strncmp(name, "data/", 5) == 0 && name[5];
}

static int take_once(const struct dcp_zip_member **slot, const struct dcp_zip_member *m,
		     struct dcp_err *err)
{
	if (*slot)
		return dcp_fail_at(err, -EBADMSG, m->header_off, "two members named \"%s\"",
				   m->name);
	*slot = m;
	return 0;
}

static int survey_members(const struct dcp_zip_member *m, size_t n, const char *prefix,
			  size_t prefix_n, struct archive *a, struct dcp_err *err)
{
	for (size_t i = 0; i < n; i++) {
		const char *name = behind_prefix(&m[i], prefix, prefix_n);
		int r = 0;

		if (!name)
			continue;
		if (is_storage(name))
			a->ndata++;
		else if (strcmp(name, "data.pkl") == 0)
			r = take_once(&a->pickle, &m[i], err);
		else if (strcmp(name, "byteorder") == 0)
			r = take_once(&a->byteorder, &m[i], err);
		else if (strcmp(name, "constants.pkl") == 0 || strncmp(name, "code/", 5) == 0)
			r = dcp_fail_at(
				err, -ENOTSUP, m[i].header_off,
				"TorchScript archive: \"%s\" is program code; load it with "
				"torch.jit.load and save its state_dict",
				m[i].name);
		if (r < 0)
			return r;
	}
	if (!a->pickle)
		return dcp_fail(err, -EBADMSG,
				"not a torch.save archive: no member \"%.*sdata.pkl\"",
				(int)prefix_n, prefix);
	return 0;
}

/* Recognise zip archives of other programs by a member that only they have. */
static const char *other_archive(const struct dcp_zip_member *m, size_t n)
{
	static const struct {
		const char *name, *what;
	} known[] = {
		{ "serialized_exported_program.json", "a torch.export program (.pt2)" },
		{ "archive_format", "a torch.export package (.pt2)" },
		{ "models/model.json", "a torch.export package (.pt2)" },
		{ "model.json", "a TorchScript archive of torch 1.0" },
		{ "model.weights.h5", "a Keras model (.keras)" },
		{ "Manifest.json", "a Core ML package" },
	};

	for (size_t i = 0; i < n; i++) {
		size_t len = strlen(m[i].name);

		if (len > 4 && strcmp(m[i].name + len - 4, ".npy") == 0)
			return "an .npz archive of numpy";
		for (size_t k = 0; k < DCP_LEN(known); k++) {
			size_t want = strlen(known[k].name);

			if (len >= want && strcmp(m[i].name + len - want, known[k].name) == 0 &&
			    (len == want || m[i].name[len - want - 1] == '/'))
				return known[k].what;
		}
	}
	return NULL;
}

static bool has_pickle(const struct dcp_zip_member *m, size_t n)
{
	static const char *const names[] = { "/data.pkl", "/constants.pkl" };

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < DCP_LEN(names); k++) {
			const char *slash = strchr(m[i].name, '/');

			if (slash && strcmp(slash, names[k]) == 0)
				return true;
		}
	return false;
}

static int take_records(struct dcp_torch *t, const struct dcp_zip_member *m, size_t n,
			const char *prefix, size_t prefix_n, size_t ndata, struct dcp_err *err)
{
	t->records = dcp_arena_calloc(&t->arena, ndata, sizeof(*t->records));
	if (!t->records)
		return dcp_fail(err, -ENOMEM, "out of memory for %zu storages", ndata);
	for (size_t i = 0; i < n; i++) {
		const char *name = behind_prefix(&m[i], prefix, prefix_n);

		if (name && is_storage(name))
			t->records[t->nrecords++] = (struct dcp_torch_record){
				.key = name + 5,
				.off = DCP_TORCH_UNLOCATED,
				.size = m[i].size,
				.member = &m[i],
			};
	}
	return dcp_torch_sort_records(t, err);
}

static int locate_member(const struct dcp_torch *t, const struct dcp_zip_member *m,
			 uint64_t *off, struct dcp_err *err)
{
	if (!m->stored)
		return dcp_fail_at(
			err, -ENOTSUP, m->header_off,
			"member \"%s\" is compressed or encrypted; torch.save never does that: "
			"write the file again with torch.save(torch.load(...))",
			m->name);
	return dcp_zip_data(&t->src, m, off, err);
}

static int read_byteorder(struct dcp_torch *t, const struct dcp_zip_member *m,
			  struct dcp_err *err)
{
	char order[8] = "";
	uint64_t off = 0;
	int r;

	if (!m)
		return 0; /* torch < 2.1 wrote no record; its hosts were little-endian */
	r = locate_member(t, m, &off, err);
	if (r < 0)
		return r;
	if (m->size < sizeof(order)) {
		r = dcp_source_read(&t->src, off, order, (size_t)m->size);
		if (r < 0)
			return dcp_fail_at(err, r, off, "cannot read \"%s\"", m->name);
	}
	t->big_endian = strcmp(order, "big") == 0;
	if (!t->big_endian && strcmp(order, "little") != 0)
		return dcp_fail_at(err, -EBADMSG, off, "byteorder is neither little nor big");
	t->small_end = off + m->size;
	return 0;
}

static int open_zip(struct dcp_torch *t, struct dcp_err *err)
{
	struct dcp_pickle_opts opts = { .memory = t->memory };
	struct dcp_zip_member *m = NULL;
	struct archive a = { 0 };
	size_t n = 0, prefix_n;
	const char *slash, *other;
	uint64_t off = 0;
	int r = dcp_zip_list(&t->src, &t->arena, &m, &n, err);

	if (r < 0)
		return r;
	other = has_pickle(m, n) ? NULL : other_archive(m, n);
	if (other)
		return dcp_fail_at(err, -ENOTSUP, 0, "not a torch.save archive, but %s", other);
	slash = n ? strchr(m[0].name, '/') : NULL;
	if (!slash)
		return dcp_fail(err, -EBADMSG, "not a torch.save archive: %s",
				n ? "its first member is in no folder" : "it is empty");
	prefix_n = (size_t)(slash - m[0].name) + 1;
	r = survey_members(m, n, m[0].name, prefix_n, &a, err);
	if (r == 0)
		r = take_records(t, m, n, m[0].name, prefix_n, a.ndata, err);
	if (r == 0)
		r = read_byteorder(t, a.byteorder, err);
	if (r == 0)
		r = locate_member(t, a.pickle, &off, err);
	if (r < 0)
		return r;
	t->window = dcp_source_window(&t->src, off, a.pickle->size);
	t->pickle_src = &t->window;
	t->pickle_n = a.pickle->size;
	if (t->small_end)
		t->small_end = DCP_MAX(t->small_end, off + a.pickle->size);
	r = dcp_pickle_read(&t->window, &opts, &t->pickle, NULL, err);
	return r < 0 ? dcp_err_where(err, r, "%s", a.pickle->name) : 0;
}

/* ---- which container ---- */

static bool starts_with(const struct dcp_torch *t, size_t at, const char *magic, size_t n)
{
	return at + n <= t->head_n && memcmp(t->head + at, magic, n) == 0;
}

static int open_stream(struct dcp_torch *t, struct dcp_err *err)
{
	const char *other = dcp_magic(t->head, t->head_n);

	if (starts_with(t, 0, "PK\3\4", 4) || starts_with(t, 0, "PK\5\6", 4))
		return open_zip(t, err);
	if (starts_with(t, 257, "ustar", 5))
		return dcp_torch_open_tar(t, err);
	if (starts_with(t, 0, "\x80", 1))
		return dcp_torch_open_legacy(t, err);
	if (!t->head_n)
		return dcp_fail_at(err, -EBADMSG, 0, "empty; expected a torch.save stream");
	if (other)
		return dcp_fail_at(err, -ENOTSUP, 0, "not a torch.save stream, but %s", other);
	return dcp_fail_at(
		err, -EBADMSG, 0,
		"not a torch.save stream: starts with 0x%02x, expected a zip archive or a "
		"pickle",
		t->head[0]);
}

int dcp_torch_open(const struct dcp_source *src, size_t memory, struct dcp_torch **out,
		   struct dcp_err *err)
{
	struct dcp_torch *t = malloc(sizeof(*t));
	int r;

	if (!t)
		return dcp_fail(err, -ENOMEM, "out of memory");
	memset(t, 0, offsetof(struct dcp_torch, head));
	t->src = (struct dcp_source){ .read = read_headed, .size = src->size };
	t->under = src;
	t->memory = memory ? memory : MEMORY_DEFAULT;
	dcp_arena_init(&t->arena, t->memory);
	t->head_n = (size_t)DCP_MIN(src->size, (uint64_t)sizeof(t->head));
	r = dcp_source_read(src, 0, t->head, t->head_n);
	if (r < 0) {
		t->head_n = 0;
		r = dcp_fail_at(err, r, 0, "cannot read the start of the stream");
	} else {
		r = open_stream(t, err);
	}
	if (r < 0) {
		dcp_torch_close(t);
		return r;
	}
	*out = t;
	return 0;
}

int dcp_torch_open_file(const struct dcp_dir *dir, const char *name, struct dcp_torch **out,
			struct dcp_err *err)
{
	struct dcp_input input;
	int r = dcp_dir_input(dir, name, &input, err);

	if (r < 0)
		return r;
	r = dcp_torch_open(&input.src, 0, out, err);
	if (r < 0) {
		dcp_input_close(&input);
		return dcp_err_where(err, r, "%s", name);
	}
	(*out)->file = input;
	(*out)->under = &(*out)->file.src;
	return 0;
}

void dcp_torch_close(struct dcp_torch *t)
{
	if (!t)
		return;
	dcp_input_close(&t->file);
	dcp_pickle_free(t->pickle);
	dcp_arena_finish(&t->arena);
	free(t);
}

uint64_t dcp_torch_pickle_size(const struct dcp_torch *t)
{
	return t->pickle_n;
}

uint64_t dcp_torch_size(const struct dcp_torch *t)
{
	return t->src.size;
}

struct dcp_pv dcp_torch_root(const struct dcp_torch *t)
{
	return dcp_pickle_root(t->pickle);
}

int dcp_torch_read(const struct dcp_torch *t, struct dcp_pv v, uint64_t off, void *buf,
		   size_t n)
{
	return dcp_pv_read(t->pickle_src, v, off, buf, n);
}

enum {
	FRAMES = 64,     /* a model has 10 to 20 shapes; ranks may cut each in two sizes */
	HEAD_MAX = 1024, /* torch aligns the storage to 64 bytes: usually 576 to 704 */
	ITEM_MEMORY = 1 << 20,
	CRC = 14,
	CRC_SIZE = 4, /* of a local header */
};

struct frame {
	uint64_t size; /* of the whole item */
	uint32_t n;    /* of the head: the storage begins there */
	uint32_t crc;  /* where the storage's checksum lies in the head */
	struct dcp_torch_tensor tensor;
	uint8_t head[HEAD_MAX];
};

struct dcp_torch_frames {
	pthread_mutex_t lock; /* everything below; not held while anything is read */
	struct frame *frame[FRAMES];
	unsigned n, next; /* if all are taken, frame[next] is overwritten */
	uint64_t hits, parsed;
};

struct dcp_torch_frames *dcp_torch_frames_create(void)
{
	struct dcp_torch_frames *f = calloc(1, sizeof(*f));

	if (f)
		pthread_mutex_init(&f->lock, NULL);
	return f;
}

void dcp_torch_frames_destroy(struct dcp_torch_frames *f)
{
	if (!f)
		return;
	for (unsigned i = 0; i < f->n; i++)
		free(f->frame[i]);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

static uint64_t read_count(struct dcp_torch_frames *f, const uint64_t *count)
{
	uint64_t n;

	pthread_mutex_lock(&f->lock);
	n = *count;
	pthread_mutex_unlock(&f->lock);
	return n;
}

uint64_t dcp_torch_frames_hits(struct dcp_torch_frames *f)
{
	return read_count(f, &f->hits);
}

uint64_t dcp_torch_frames_parsed(struct dcp_torch_frames *f)
{
	return read_count(f, &f->parsed);
}

/* The longest head of the frames for items of @size bytes; 0: there are none. */
static uint32_t head_of_size(struct dcp_torch_frames *f, uint64_t size)
{
	uint32_t n = 0;

	pthread_mutex_lock(&f->lock);
	for (unsigned i = 0; i < f->n; i++)
		if (f->frame[i]->size == size)
			n = DCP_MAX(n, f->frame[i]->n);
	pthread_mutex_unlock(&f->lock);
	return n;
}

static bool same_head(const struct frame *frame, const uint8_t *head)
{
	uint32_t behind = frame->crc + CRC_SIZE;

	return memcmp(frame->head, head, frame->crc) == 0 &&
	       memcmp(frame->head + behind, head + behind, frame->n - behind) == 0;
}

bool dcp_torch_known(struct dcp_torch_frames *f, const struct dcp_source *item,
		     struct dcp_torch_tensor *out)
{
	uint32_t n = head_of_size(f, item->size);
	uint8_t head[HEAD_MAX];
	bool found = false;

	if (!n || dcp_source_read(item, 0, head, n) < 0)
		return false; /* opening the item reports the reason */
	pthread_mutex_lock(&f->lock);
	for (unsigned i = 0; i < f->n && !found; i++) {
		const struct frame *frame = f->frame[i];

		found = frame->size == item->size && frame->n <= n && same_head(frame, head);
		if (found)
			*out = frame->tensor;
	}
	f->hits += found;
	pthread_mutex_unlock(&f->lock);
	return found;
}

/* Does the head of @t hold the whole description of @tt? */
static bool is_framed(const struct dcp_torch *t)
{
	const struct dcp_torch_record *r = t->records;

	return t->nrecords == 1 && r->member && r->member->stored &&
	       r->off != DCP_TORCH_UNLOCATED && t->small_end &&
	       t->small_end <= r->member->header_off &&
	       r->member->header_off + CRC + CRC_SIZE <= r->off &&
	       r->off <= DCP_MIN((size_t)HEAD_MAX, t->head_n);
}

/* Count the parsed item @t, and keep its head if the next such item can be known by it. */
static void keep_frame(struct dcp_torch_frames *f, const struct dcp_torch *t,
		       const struct dcp_torch_tensor *tt)
{
	struct frame *frame, **at;

	pthread_mutex_lock(&f->lock);
	f->parsed++;
	pthread_mutex_unlock(&f->lock);
	if (!is_framed(t) || !(frame = malloc(sizeof(*frame))))
		return;
	frame->size = t->src.size;
	frame->n = (uint32_t)t->records->off;
	frame->crc = (uint32_t)t->records->member->header_off + CRC;
	frame->tensor = *tt;
	memcpy(frame->head, t->head, frame->n);
	pthread_mutex_lock(&f->lock);
	at = &f->frame[f->next];
	f->next = (f->next + 1) % FRAMES;
	if (f->n < FRAMES)
		f->n++;
	else
		free(*at);
	*at = frame;
	pthread_mutex_unlock(&f->lock);
}

int dcp_torch_item(struct dcp_torch_frames *f, const struct dcp_source *item,
		   struct dcp_torch_tensor *out, struct dcp_err *err)
{
	dcp_auto_torch struct dcp_torch *torch = NULL;
	int rc;

	if (f && dcp_torch_known(f, item, out))
		return 1;
	rc = dcp_torch_open(item, ITEM_MEMORY, &torch, err);
	if (rc < 0)
		return rc;
	rc = dcp_torch_tensor(torch, dcp_torch_root(torch), out, err);
	if (f && rc == 1)
		keep_frame(f, torch, out);
	return rc;
}
