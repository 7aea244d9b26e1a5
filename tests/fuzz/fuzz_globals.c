/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dcpfs scan says a pickle imports: no crash, no leak, every name short and with its module, a
 * reason with every refusal, places that go forward. Where the pickle machine understands the same
 * bytes, each class and function that it finds must have been told before: one that scan passes
 * over is what an attacker looks for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MEMORY = 16 << 20, MAX_VISITS = 20000, MAX_DEPTH = 100 };

static void must(bool ok)
{
	if (!ok)
		abort();
}

struct told {
	struct dcp_buf names; /* "module\nname", each with its NUL */
	bool computed;        /* some have no name here */
	uint64_t last, size;
};

static int tell(void *ctx, const char *module, const char *name, uint64_t off)
{
	struct told *t = ctx;

	must(off < t->size && off >= t->last);
	t->last = off;
	t->computed |= !module;
	if (!module)
		return 0;
	must(strlen(module) <= DCP_GLOBALS_MAX_NAME && strlen(name) <= DCP_GLOBALS_MAX_NAME);
	dcp_buf_str(&t->names, module);
	dcp_buf_str(&t->names, "\n");
	dcp_buf_add(&t->names, name, strlen(name) + 1);
	return 0;
}

static bool was_told(const struct told *t, const char *module, const char *name)
{
	for (size_t at = 0; at < t->names.n; at += strlen(t->names.p + at) + 1) {
		const char *p = t->names.p + at, *rest = strchr(p, '\n');

		if (strlen(module) == (size_t)(rest - p) &&
		    strncmp(p, module, strlen(module)) == 0 && strcmp(rest + 1, name) == 0)
			return true;
	}
	return false;
}

static void visit(const struct told *t, struct dcp_pv v, unsigned depth, unsigned *left)
{
	const struct dcp_pnode *node = v.node;

	if (depth > MAX_DEPTH || !*left)
		return;
	--*left;
	if (v.type == DCP_PV_GLOBAL) {
		if (strlen(node->module) <= DCP_GLOBALS_MAX_NAME &&
		    strlen(node->name) <= DCP_GLOBALS_MAX_NAME && !strchr(node->module, '\n'))
			must(t->computed || was_told(t, node->module, node->name));
	} else if (v.type == DCP_PV_OBJECT) {
		const struct dcp_pobj *o = node->obj;

		visit(t, o->callable, depth + 1, left);
		visit(t, o->args, depth + 1, left);
		visit(t, o->kwargs, depth + 1, left);
		visit(t, o->state, depth + 1, left);
		visit(t, o->list, depth + 1, left);
		visit(t, o->dict, depth + 1, left);
	} else if (v.type >= DCP_PV_TUPLE) {
		for (uint32_t i = 0; i < node->nitems; i++)
			visit(t, node->items[i], depth + 1, left);
	}
}

static int stop(void *ctx, const char *module, const char *name, uint64_t off)
{
	unsigned *left = ctx;

	return --*left ? 0 : -ECANCELED;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_pickle_opts opts = { .memory = MEMORY };
	struct told t = { .size = n };
	struct dcp_pickle *p = NULL;
	struct dcp_err err = { 0 };
	unsigned left = MAX_VISITS, few = n ? data[n - 1] % 4u + 1 : 1;
	uint64_t end = 0, read = 0;
	int rc = dcp_globals(&src, 0, &end, tell, &t, &err);

	must(rc == 0 || rc == -EBADMSG);
	must(end <= n && (rc == 0 || err.msg[0]));
	if (dcp_pickle_read(&src, &opts, &p, &read, &err) == 0) {
		must(rc == 0 && end == read);
		visit(&t, dcp_pickle_root(p), 0, &left);
		dcp_pickle_free(p);
	}
	/* A caller that ends it, and one that begins in the middle. */
	rc = dcp_globals(&src, 0, &end, stop, &few, NULL);
	must(rc == 0 || rc == -EBADMSG || rc == -ECANCELED);
	if (n > 1) {
		t.last = 0;
		dcp_globals(&src, n / 2, &end, tell, &t, NULL);
	}
	dcp_buf_finish(&t.names);
	return 0;
}
