/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool: idle connections to indexes, kept for reuse.
 *
 * A connection costs some hundred microseconds to open and up to half a megabyte of pages. So
 * idle ones are kept, the last used with their pages, the others without; otherwise a caller
 * that queries many indexes in turn would open each again each time. By default an index has its
 * own pool; a caller that opens many indexes gives them one pool, with one limit for all.
 *
 * Safe from any thread.
 */
#pragma once

struct dcp_index;
struct dcp_index_pool;

/* At most @max idle connections. -ENOMEM. */
int dcp_index_pool_create(unsigned max, struct dcp_index_pool **out);
/* Call it when every index that shares the pool is closed. Accepts NULL. */
void dcp_index_pool_destroy(struct dcp_index_pool *pool);

/* From now on, @ix, which no other thread uses yet, keeps its connections there. */
void dcp_index_share(struct dcp_index *ix, struct dcp_index_pool *pool);
