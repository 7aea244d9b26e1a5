/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/torch/frame.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/origin/archive/zip.h"
#include "core/parse/torch/torch_int.h"

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
	unsigned n, next; /* the next is overwritten once all are taken */
	uint64_t hits;
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

uint64_t dcp_torch_frames_hits(struct dcp_torch_frames *f)
{
	uint64_t hits;

	pthread_mutex_lock(&f->lock);
	hits = f->hits;
	pthread_mutex_unlock(&f->lock);
	return hits;
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

static bool find(struct dcp_torch_frames *f, const struct dcp_source *item,
		 struct dcp_torch_tensor *out)
{
	uint32_t n = head_of_size(f, item->size);
	uint8_t head[HEAD_MAX];
	bool found = false;

	if (!n || dcp_source_read(item, 0, head, n) < 0)
		return false; /* opening it says why */
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

/* Does the head of @t hold everything that says what @tt is? */
static bool is_framed(const struct dcp_torch *t)
{
	const struct dcp_torch_record *r = t->records;

	return t->nrecords == 1 && r->member && r->member->stored &&
	       r->off != DCP_TORCH_UNLOCATED && t->small_end &&
	       t->small_end <= r->member->header_off &&
	       r->member->header_off + CRC + CRC_SIZE <= r->off &&
	       r->off <= DCP_MIN((size_t)HEAD_MAX, t->head_n);
}

static void keep(struct dcp_torch_frames *f, const struct dcp_torch *t,
		 const struct dcp_torch_tensor *tt)
{
	struct frame *frame, **at;

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

	if (f && find(f, item, out))
		return 1;
	rc = dcp_torch_open(item, ITEM_MEMORY, &torch, err);
	if (rc < 0)
		return rc;
	rc = dcp_torch_tensor(torch, dcp_torch_root(torch), out, err);
	if (f && rc == 1)
		keep(f, torch, out);
	return rc;
}
