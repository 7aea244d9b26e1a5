/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool: connections to indexes that are idle, kept for the next who asks.
 *
 * A connection costs some hundred microseconds to open and up to half a megabyte of pages. So
 * they are kept, the last used ones with their pages, the others without: who asks many indexes
 * in turn would else open each anew each time. An index has a pool of its own; whoever opens
 * many of them gives all one, and with that one limit to all.
 *
 * Safe from any thread.
 */
#pragma once

struct dcp_index;
struct dcp_index_pool;

/* At most @max idle connections. -ENOMEM. */
int dcp_index_pool_create(unsigned max, struct dcp_index_pool **out);
/* When every index that shares it is closed. Accepts NULL. */
void dcp_index_pool_destroy(struct dcp_index_pool *pool);

/* From now on, @ix, which nobody else uses yet, keeps its connections there. */
void dcp_index_share(struct dcp_index *ix, struct dcp_index_pool *pool);
