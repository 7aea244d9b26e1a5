/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of classes and functions, each stored once as a rule: a hash table with short
 * probes. A name that finds no place in it gets a node of its own, so that names made to
 * collide cost memory, which is limited, and not time.
 */
#include <errno.h>
#include <string.h>

#include "core/parse/pickle/vm.h"

enum { GLOBALS_MIN = 32, GLOBALS_MAX = 1 << 16, PROBES = 8 };

static struct dcp_pnode *new_global(struct dcp_pkl_mem *m, const char *module, size_t nmodule,
				    const char *name, size_t nname)
{
	/* Three strings: "module", "module.name", and "name" as the end of the second. */
	struct dcp_pnode *node = dcp_pkl_alloc(m, sizeof(*node) + 2 * nmodule + nname + 3);
	char *s, *full;

	if (!node)
		return NULL;
	s = (char *)(node + 1);
	memcpy(s, module, nmodule);
	s[nmodule] = '\0';
	full = s + nmodule + 1;
	memcpy(full, module, nmodule);
	full[nmodule] = '.';
	memcpy(full + nmodule + 1, name, nname);
	full[nmodule + 1 + nname] = '\0';
	node->refs = 1;
	node->depth = 0;
	node->module = s;
	node->full = full;
	node->name = full + nmodule + 1;
	return node;
}

static uint64_t hash_global(const char *module, const char *name)
{
	uint64_t h = 0;

	for (; *module; module++)
		h = dcp_pkl_mix(h, (uint8_t)*module);
	for (h = dcp_pkl_mix(h, '.'); *name; name++)
		h = dcp_pkl_mix(h, (uint8_t)*name);
	return h;
}

/* An empty place, or the one of an equal global; NULL: neither within a few steps. */
static struct dcp_pnode **find_global(struct dcp_pkl_mem *m, const struct dcp_pnode *g)
{
	uint64_t h = hash_global(g->module, g->name);

	for (size_t i = 0; m->globals_cap && i < PROBES; i++) {
		struct dcp_pnode **at = &m->globals[(h + i) & (m->globals_cap - 1)];

		if (!*at ||
		    (!strcmp((*at)->module, g->module) && !strcmp((*at)->name, g->name)))
			return at;
	}
	return NULL;
}

/* Twice the places; globals that find none are no longer shared, nothing worse. */
static void grow_globals(struct dcp_pkl_mem *m)
{
	uint32_t old_cap = m->globals_cap, cap = old_cap ? old_cap * 2 : GLOBALS_MIN;
	struct dcp_pnode **old = m->globals, **fresh;

	if (cap > GLOBALS_MAX)
		return;
	fresh = dcp_pkl_resize(m, NULL, 0, cap * sizeof(*fresh));
	if (!fresh)
		return;
	memset(fresh, 0, cap * sizeof(*fresh));
	m->globals = fresh;
	m->globals_cap = cap;
	for (uint32_t i = 0; i < old_cap; i++) {
		struct dcp_pnode **at = old[i] ? find_global(m, old[i]) : NULL;

		if (at) {
			*at = old[i];
		} else if (old[i]) {
			dcp_pkl_drop(m, dcp_pkl_node(DCP_PV_GLOBAL, old[i]));
			m->nglobals--;
		}
	}
	dcp_pkl_resize(m, old, old_cap * sizeof(*old), 0);
}

struct dcp_pnode *dcp_pkl_global(struct dcp_pkl_mem *m, const char *module, size_t nmodule,
				 const char *name, size_t nname)
{
	struct dcp_pnode *node = new_global(m, module, nmodule, name, nname), **at;

	if (!node)
		return NULL;
	if (m->nglobals >= m->globals_cap / 2)
		grow_globals(m);
	at = find_global(m, node);
	if (!at)
		return node;
	if (!*at) {
		*at = node;
		m->nglobals++;
	} else {
		dcp_pkl_drop(m, dcp_pkl_node(DCP_PV_GLOBAL, node));
	}
	(*at)->refs++;
	return *at;
}

int dcp_pkl_read_global(struct dcp_pkl_vm *vm, struct dcp_pnode **out, size_t *size)
{
	size_t nmodule, nname;
	const char *module;
	int r = dcp_pkl_win_line(&vm->w, &vm->p, 1, &nmodule);

	if (r == 0)
		r = dcp_pkl_win_line(&vm->w, &vm->p, 1 + nmodule + 1, &nname);
	if (r < 0)
		return r;
	module = (const char *)vm->p + 1;
	*size = 1 + nmodule + 1 + nname + 1;
	if (!dcp_pkl_utf8(module, *size - 2, false) || memchr(module, '\0', *size - 2))
		return dcp_pkl_fail(vm, -EBADMSG,
				    "has a name that is not UTF-8 or has a NUL in it");
	*out = dcp_pkl_global(vm->mem, module, nmodule, module + nmodule + 1, nname);
	return *out ? 0 : dcp_pkl_no_memory(vm);
}
