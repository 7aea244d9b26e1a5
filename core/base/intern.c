/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/intern.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"

#define MAX_STRINGS (1u << 31)

void dcp_intern_finish(struct dcp_intern *in)
{
	dcp_buf_finish(&in->text);
	free(in->entry);
	free(in->slot);
	*in = (struct dcp_intern)DCP_INTERN_INIT;
}

static bool is_entry(const struct dcp_intern *in, uint32_t number, const void *s, size_t n)
{
	const struct dcp_intern_entry *e = &in->entry[number];

	return e->len == n && (n == 0 || memcmp(in->text.p + e->off, s, n) == 0);
}

/* The slot that holds @s, or the free one where it belongs. The table is never full. */
static uint32_t find_slot(const struct dcp_intern *in, const void *s, size_t n, uint32_t hash)
{
	uint32_t mask = in->nslots - 1;

	for (uint32_t i = hash & mask;; i = (i + 1) & mask) {
		uint32_t number = in->slot[i];

		if (!number)
			return i;
		if (in->entry[number - 1].hash == hash && is_entry(in, number - 1, s, n))
			return i;
	}
}

static int grow_slots(struct dcp_intern *in)
{
	uint32_t nslots = in->nslots ? in->nslots * 2 : 64, mask = nslots - 1;
	uint32_t *slot = calloc(nslots, sizeof(*slot));

	if (!slot)
		return -ENOMEM;
	for (uint32_t k = 0; k < in->n; k++) {
		uint32_t i = in->entry[k].hash & mask;

		while (slot[i])
			i = (i + 1) & mask;
		slot[i] = k + 1;
	}
	free(in->slot);
	in->slot = slot;
	in->nslots = nslots;
	return 0;
}

static int grow_entries(struct dcp_intern *in)
{
	uint32_t cap = in->cap ? in->cap * 2 : 32;
	struct dcp_intern_entry *entry = realloc(in->entry, (size_t)cap * sizeof(*entry));

	if (!entry)
		return -ENOMEM;
	in->entry = entry;
	in->cap = cap;
	return 0;
}

int dcp_intern_add(struct dcp_intern *in, const void *s, size_t n, uint32_t guess,
		   uint32_t *number)
{
	uint32_t hash, i, unused;
	int rc;

	number = number ? number : &unused;
	if (guess < in->n && is_entry(in, guess, s, n)) {
		*number = guess;
		return 0;
	}
	if (in->n >= in->nslots / 3 * 2) {
		if (in->n >= MAX_STRINGS / 4 * 3)
			return -E2BIG;
		rc = grow_slots(in);
		if (rc < 0)
			return rc;
	}
	hash = (uint32_t)dcp_hash64(s, n);
	i = find_slot(in, s, n, hash);
	if (in->slot[i]) {
		*number = in->slot[i] - 1;
		return 0;
	}
	if (n >= UINT32_MAX || in->text.n + n + 1 > UINT32_MAX)
		return -E2BIG;
	if (in->n == in->cap) {
		rc = grow_entries(in);
		if (rc < 0)
			return rc;
	}
	in->entry[in->n] = (struct dcp_intern_entry){ (uint32_t)in->text.n, (uint32_t)n, hash };
	dcp_buf_add(&in->text, s, n);
	if (dcp_buf_add(&in->text, "", 1) < 0)
		return -ENOMEM;
	*number = in->n;
	in->slot[i] = ++in->n;
	return 1;
}

uint32_t dcp_intern_find(const struct dcp_intern *in, const void *s, size_t n)
{
	uint32_t i;

	if (!in->n)
		return DCP_INTERN_NONE;
	i = find_slot(in, s, n, (uint32_t)dcp_hash64(s, n));
	return in->slot[i] ? in->slot[i] - 1 : DCP_INTERN_NONE;
}

const char *dcp_intern_text(const struct dcp_intern *in, uint32_t number)
{
	return in->text.p + in->entry[number].off;
}
