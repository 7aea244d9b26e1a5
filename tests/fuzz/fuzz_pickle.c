/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: no crash, no leak, a reason with every refusal, no more memory than
 * allowed, and a tree that can be walked. A window of another size, a hook and a source
 * that changes while it is read must not make it worse.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MEMORY = 16 << 20, MAX_VISITS = 20000, MAX_DEPTH = 100 };

static void must(bool ok)
{
	if (!ok)
		abort();
}

static size_t sum(const char *p, uint64_t n)
{
	size_t s = 0;

	for (uint64_t i = 0; i < n; i++)
		s += (uint8_t)p[i];
	return s;
}

/* Touches every byte it may touch; the count bounds what shared values multiply. */
static void visit(struct dcp_pv v, unsigned depth, unsigned *left, size_t *seen)
{
	const struct dcp_pnode *node = v.node;
	size_t n;

	must(v.type <= DCP_PV_PERSID);
	if (depth > MAX_DEPTH || !*left)
		return;
	--*left;
	if (v.type >= DCP_PV_BIGINT)
		must(node->refs > 0);
	if (v.type >= DCP_PV_BIGINT && v.type <= DCP_PV_BYTEARRAY) {
		if (node->data)
			*seen += sum(node->data, node->n + 1);
		if (v.type == DCP_PV_STR)
			must(node->data && !node->data[node->n]);
		if (v.type == DCP_PV_BIGINT)
			must(node->n > 8 && node->n <= DCP_PICKLE_MAX_INT);
	} else if (v.type == DCP_PV_GLOBAL) {
		*seen += strlen(node->module) + strlen(node->name);
	} else if (v.type == DCP_PV_OBJECT) {
		const struct dcp_pobj *o = node->obj;

		must(o->args.type == DCP_PV_TUPLE);
		must(o->list.type == DCP_PV_NONE || o->list.type == DCP_PV_LIST);
		must(o->dict.type == DCP_PV_NONE || o->dict.type == DCP_PV_DICT);
		visit(o->callable, depth + 1, left, seen);
		visit(o->args, depth + 1, left, seen);
		visit(o->kwargs, depth + 1, left, seen);
		visit(o->state, depth + 1, left, seen);
		visit(o->list, depth + 1, left, seen);
		visit(o->dict, depth + 1, left, seen);
		*seen += dcp_pv_get(v, "k") != NULL;
		*seen += dcp_pv_pairs(v, &n) != NULL;
	} else if (v.type >= DCP_PV_TUPLE) {
		for (uint32_t i = 0; i < node->nitems; i++)
			visit(node->items[i], depth + 1, left, seen);
		must(v.type != DCP_PV_DICT || node->nitems % 2 == 0);
	}
}

static size_t walk(struct dcp_pv v)
{
	unsigned left = MAX_VISITS;
	size_t seen = 0;

	visit(v, 0, &left, &seen);
	return seen + MAX_VISITS - left;
}

static int take_some(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		     size_t npairs, struct dcp_err *err)
{
	unsigned *calls = ctx;

	must(npairs > 0 && walk(where) + walk(kv[0]) + walk(kv[2 * npairs - 1]) > 0);
	if (*calls % 64 == 63)
		return dcp_fail_at(err, -ECANCELED, depth, "enough");
	return ++*calls % 3 != 0;
}

static int check(int code, struct dcp_pickle *p, uint64_t end, uint64_t size,
		 const struct dcp_err *err)
{
	if (code < 0) {
		must(!p && err->code == code && err->msg[0]);
		return code;
	}
	must(code == 0 && end > 0 && end <= size);
	must(p->mem.used <= MEMORY);
	walk(dcp_pickle_root(p));
	dcp_pickle_free(p);
	return 0;
}

struct changing {
	struct dcp_source src;
	const uint8_t *halves[2];
	unsigned reads, change_after;
};

static int read_changing(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	struct changing *c = (struct changing *)(uintptr_t)src;

	memcpy(buf, c->halves[c->reads++ >= c->change_after] + off, n);
	return 0;
}

static void read_while_it_changes(const uint8_t *data, size_t n)
{
	struct changing c = { .src = { .read = read_changing, .size = n / 2 },
			      .halves = { data, data + n / 2 },
			      .change_after = n ? data[n - 1] % 8 : 0 };
	struct dcp_pickle_opts opts = { .memory = MEMORY };
	struct dcp_pickle *p = NULL;
	struct dcp_err err = { 0 };
	uint64_t end = 0;
	int code = dcp_pickle_read_windowed(&c.src, &opts, 64, &p, &end, &err);

	check(code, p, end, n / 2, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	unsigned calls = 0;
	struct dcp_pickle_hook hook = { take_some, &calls };
	struct dcp_pickle_opts opts = { .memory = MEMORY }, hooked = { MEMORY, &hook, 0 };
	struct dcp_pickle *p = NULL, *q = NULL, *s = NULL;
	struct dcp_err e1 = { 0 }, e2 = { 0 }, e3 = { 0 };
	uint64_t end1 = 0, end2 = 0, end3 = 0;
	int r1, r2;

	r1 = dcp_pickle_read(&src, &opts, &p, &end1, &e1);
	r1 = check(r1, p, end1, n, &e1);
	r2 = dcp_pickle_read_windowed(&src, &opts, 16 + n % 32, &q, &end2, &e2);
	r2 = check(r2, q, end2, n, &e2);
	must(r1 == r2 && end1 == end2 && !strcmp(e1.msg, e2.msg) && e1.off == e2.off);
	r2 = dcp_pickle_read_windowed(&src, &hooked, 100, &s, &end3, &e3);
	check(r2, s, end3, n, &e3);
	read_while_it_changes(data, n);
	return 0;
}
