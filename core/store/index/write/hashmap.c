/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open addressing, linear probing, at most two thirds full. A tag is the upper half of the
 * hash and alone says where its search begins, so the table can grow without the rows.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/store/index/write/write_int.h"

enum { MAP_MIN = 64 };

static uint32_t home(const struct dcp_index_map *m, uint32_t tag)
{
	return (uint32_t)((uint64_t)tag * m->cap >> 32);
}

uint32_t dcp_index_map_next(const struct dcp_index_map *m, uint64_t hash, uint32_t *at)
{
	uint32_t tag = (uint32_t)(hash >> 32);

	while (*at < m->cap) {
		uint32_t i = home(m, tag) + (*at)++;
		const struct dcp_index_slot *s = &m->slots[i < m->cap ? i : i - m->cap];

		if (s->number == 0)
			break;
		if (s->tag == tag)
			return s->number;
	}
	return 0;
}

static void put(struct dcp_index_map *m, struct dcp_index_slot s)
{
	uint32_t i = home(m, s.tag);

	while (m->slots[i].number)
		i = i + 1 < m->cap ? i + 1 : 0;
	m->slots[i] = s;
}

static int grow(struct dcp_index_map *m)
{
	struct dcp_index_map bigger = { .n = m->n };

	if (m->cap > UINT32_MAX / 4)
		return -E2BIG;
	bigger.cap = m->cap ? m->cap * 2 : MAP_MIN;
	bigger.slots = calloc(bigger.cap, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->cap; i++)
		if (m->slots[i].number)
			put(&bigger, m->slots[i]);
	free(m->slots);
	*m = bigger;
	return 0;
}

int dcp_index_map_add(struct dcp_index_map *m, uint64_t hash, uint32_t number)
{
	int code = m->n >= m->cap / 3 * 2 ? grow(m) : 0;

	if (code < 0)
		return code;
	put(m, (struct dcp_index_slot){ (uint32_t)(hash >> 32), number });
	m->n++;
	return 0;
}

void dcp_index_map_finish(struct dcp_index_map *m)
{
	free(m->slots);
	*m = (struct dcp_index_map){ 0 };
}
