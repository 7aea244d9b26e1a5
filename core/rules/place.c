/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where are the tensors of the model of config.json? A trainer that holds a model saves it
 * below a name of its own (state_dict., app.model.), and beside it optimizers and other models.
 * The prefix below which the keys are those of config.json is the model's, whatever it is
 * called.
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/intern.h"
#include "core/rules/rules_int.h"

enum {
	/* at least one in this many tensors of the model must exist: quantized models keep few
	 * names */
	LEAST = 8,
	DEPTH = 12, /* limit of components in a prefix */
	MAX_OTHERS = 16,
};

/* Components of keys, or words in components. */
static const char *const models[] = { "model",   "policy",    "actor",  "module", "net",
				      "network", "student",   "app",    "llm",    "lm",
				      "state",   "generator", "online", "weights" };
static const char *const copies[] = { "ema",      "ref",      "reference", "teacher",  "target",
				      "old",      "avg",      "average",   "averaged", "swa",
				      "shadow",   "init",     "initial",   "critic",   "value",
				      "reward",   "previous", "prev",      "best",     "backup",
				      "momentum", "frozen",   "rm",        "draft" };
static const char *const masters[] = { "fp32", "master", "masters" };
struct candidate {
	uint64_t whole,
		bare; /* counts of keys of the model with its head, and of the model without */
};

struct placing {
	struct dcp_rules *hf; /* erases parts of keys after the prefix is removed */
	struct dcp_intern keys, bare, prefixes;
	struct dcp_intern roots;   /* first components of the model's keys */
	struct dcp_intern firsts;  /* first components of keys that are not the model's */
	struct dcp_buf candidates; /* struct candidate by number in prefixes */
	struct dcp_buf text;
	uint64_t need;
	bool some; /* only some tensors of the model are known */
	/* if no tensor of the model is known: the text that all keys begin with */
	struct dcp_buf common;
	bool any;
};

static size_t measure_component(const char *s)
{
	return strcspn(s, "./");
}

/* The text after the next dot or slash; NULL: none follows. */
static const char *skip_component(const char *s)
{
	s += measure_component(s);
	return *s ? s + 1 : NULL;
}

/* Is one of @words in the prefix, as a whole word? Anything but letters and digits separates
 * words. */
static bool has_word(const char *prefix, const char *const *words, size_t nwords)
{
	for (const char *s = prefix; *s;) {
		size_t n = 0;

		while (isalnum((unsigned char)s[n]))
			n++;
		for (size_t i = 0; i < nwords; i++)
			if (strlen(words[i]) == n && strncasecmp(s, words[i], n) == 0)
				return true;
		s += n + (s[n] != '\0');
	}
	return false;
}

#define HAS_WORD(prefix, words) has_word(prefix, words, DCP_LEN(words))

static int note_tensor(void *ctx, const struct dcp_rules_expected *x)
{
	struct placing *p = ctx;
	int rc = dcp_intern_add(&p->roots, x->key, measure_component(x->key), DCP_INTERN_NONE,
				NULL);

	if (rc >= 0)
		rc = dcp_intern_add(&p->roots, x->bare, measure_component(x->bare),
				    DCP_INTERN_NONE, NULL);
	if (rc < 0)
		return rc;
	if (x->of_expert) /* tensors of experts may be stored together in one tensor */
		return 0;
	p->need += !x->optional;
	rc = dcp_intern_str(&p->keys, x->key, NULL);
	if (rc >= 0 && x->bare != x->key)
		rc = dcp_intern_str(&p->bare, x->bare, NULL);
	return DCP_MIN(rc, 0);
}

static int count_key(struct placing *p, const char *key, const char *at, bool whole)
{
	struct candidate *c;
	uint32_t number;
	int rc =
		dcp_intern_add(&p->prefixes, key, (size_t)(at - key), DCP_INTERN_NONE, &number);

	if (rc < 0)
		return rc;
	c = dcp_buf_at(&p->candidates, number, sizeof(*c));
	if (!c)
		return -ENOMEM;
	++*(whole ? &c->whole : &c->bare);
	return 0;
}

/* Find the shortest prefix below which the key is one of the model's. */
static int look_at_key(void *ctx, uint64_t number, const char *key)
{
	struct placing *p = ctx;
	const char *bare = NULL, *at = key;

	for (int i = 0; at && i < DEPTH; i++, at = skip_component(at)) {
		const char *rest = dcp_rules_without_parts(p->hf, at, &p->text);

		if (dcp_buf_error(&p->text))
			return -ENOMEM;
		if (dcp_intern_has(&p->keys, rest))
			return count_key(p, key, at, true);
		if (!bare && dcp_intern_has(&p->bare, rest))
			bare = at;
	}
	return bare ? count_key(p, key, bare, false)
		    : DCP_MIN(dcp_intern_add(&p->firsts, key, measure_component(key),
					     DCP_INTERN_NONE, NULL),
			      0);
}

static bool is_dropped(const struct dcp_rules *r, const char *key)
{
	struct slot_value value[DCP_RULES_MAX_SLOTS];
	bool is = false;

	for (size_t i = 0; !is && i < r->nrule; i++)
		for (uint32_t k = 0; r->rule[i].drop && !is && k < r->rule[i].nsrc; k++)
			is = dcp_rules_match(&r->rule[i].src[k], key, strlen(key), value);
	return is;
}

/* Shorten the common prefix of all keys. The model of diffusers lies below it, because such models
 * have no module that contains all others. */
static int look_for_common(void *ctx, uint64_t number, const char *key)
{
	struct placing *p = ctx;
	size_t n = 0, last = 0;

	if (dcp_rules_is_training(key) || is_dropped(p->hf, key))
		return 0;
	if (!p->any) {
		p->any = true;
		return dcp_buf_str(&p->common, key);
	}
	for (; n < p->common.n && p->common.p[n] == key[n]; n++)
		if (key[n] == '.' || key[n] == '/')
			last = n + 1;
	p->common.n = last;
	return 0;
}

struct choosing {
	struct placing *p;
	bool whole;
};

static uint64_t fit_of(const struct choosing *c, uint32_t i)
{
	const struct candidate *at = DCP_ITEMS(c->p->candidates, struct candidate) + i;

	return c->whole ? at->whole : at->bare;
}

static bool is_eligible(const struct choosing *c, uint32_t i)
{
	uint64_t fit = fit_of(c, i);

	return fit && fit * (c->p->some ? 2 : LEAST) >= c->p->need &&
	       !dcp_rules_is_training(dcp_intern_text(&c->p->prefixes, i));
}

static size_t count_parts(const char *prefix)
{
	size_t n = 0;

	for (const char *s = skip_component(prefix); s; s = skip_component(s))
		n++;
	return n;
}

/* Is candidate @a a better choice than @b? */
static bool is_better(const struct choosing *c, uint32_t a, uint32_t b)
{
	const struct dcp_intern *names = &c->p->prefixes;
	/* These pointers stay valid because nothing is added any more. */
	const char *x = dcp_intern_text(names, a), *y = dcp_intern_text(names, b);
	int order = DCP_CMP(HAS_WORD(x, copies), HAS_WORD(y, copies))
			    ?: DCP_CMP(fit_of(c, b), fit_of(c, a))
			    ?: DCP_CMP(HAS_WORD(x, masters), HAS_WORD(y, masters))
			    ?: DCP_CMP(*x != '\0', *y != '\0')
			    ?: DCP_CMP(HAS_WORD(y, models), HAS_WORD(x, models))
			    ?: DCP_CMP(count_parts(x), count_parts(y))
			    ?: DCP_CMP(a, b);

	return order < 0;
}

/* Is @first the name of a file (without extension) or directory, so that its keys come from
 * there? */
static bool is_file(const struct dcp_rules_source *from, const char *first)
{
	size_t n = strlen(first);

	for (size_t i = 0; i < from->nfiles; i++)
		if (strncmp(from->files[i].name, first, n) == 0 && from->files[i].name[n] &&
		    !isalnum((unsigned char)from->files[i].name[n]))
			return true;
	return false;
}

/* If the model has no prefix, keys from other files beside it (value_head.bin,
 * adapter_model.safetensors) are not part of it. */
static void add_files(const struct placing *p, const struct dcp_rules_source *from,
		      struct dcp_rules_place *out)
{
	for (uint32_t i = 0, n = 0; i < p->firsts.n && n < MAX_OTHERS; i++) {
		const char *first = dcp_intern_text(&p->firsts, i);

		if (dcp_intern_has(&p->roots, first) || !is_file(from, first))
			continue;
		n++;
		dcp_buf_printf(&out->others, "%s.", first);
		dcp_buf_add(&out->others, "", 1);
	}
}

static int choose_prefix(const struct choosing *c, struct dcp_rules_place *out)
{
	uint32_t best = DCP_INTERN_NONE, n = c->p->prefixes.n;
	size_t nothers = 0;

	for (uint32_t i = 0; i < n; i++)
		if (is_eligible(c, i) && (best == DCP_INTERN_NONE || is_better(c, i, best)))
			best = i;
	if (best == DCP_INTERN_NONE)
		return 0;
	dcp_buf_add(&out->prefix, dcp_intern_text(&c->p->prefixes, best),
		    strlen(dcp_intern_text(&c->p->prefixes, best)) + 1);
	for (uint32_t i = 0; i < n && nothers < MAX_OTHERS; i++) {
		const char *other = dcp_intern_text(&c->p->prefixes, i);

		if (i == best || !*other || !is_eligible(c, i))
			continue;
		nothers++;
		dcp_buf_add(&out->others, other, strlen(other) + 1);
	}
	return 1;
}

int dcp_rules_find_place(const struct dcp_rules_source *from, struct dcp_rules_place *out,
			 struct dcp_err *err)
{
	struct placing p = { 0 };
	int rc = from->config ? dcp_rules_expect(from->config, note_tensor, &p) : 0;
	bool common = rc == DCP_RULES_NONE && from->config && from->config->class_name[0];

	p.some = rc == DCP_RULES_SOME;
	if (rc > 0 || common) {
		rc = dcp_rules_preset("hf", &p.hf, err);
		if (rc == 0)
			rc = from->list(from->ctx, common ? look_for_common : look_at_key, &p,
					err);
		if (rc == 0 && common && p.any) {
			dcp_buf_add(&out->prefix, p.common.p, p.common.n);
			dcp_buf_add(&out->prefix, "", 1);
			rc = 1;
		}
		for (int bare = 0; rc == 0 && bare < 2; bare++)
			rc = choose_prefix(&(struct choosing){ &p, !bare }, out);
		if (rc > 0 && !p.some && !common && out->prefix.p && !*out->prefix.p)
			add_files(&p, from, out);
	}
	if (rc >= 0 && (dcp_buf_error(&out->prefix) || dcp_buf_error(&out->others)))
		rc = -ENOMEM;
	dcp_rules_free(p.hf);
	dcp_intern_finish(&p.keys);
	dcp_intern_finish(&p.bare);
	dcp_intern_finish(&p.prefixes);
	dcp_intern_finish(&p.roots);
	dcp_intern_finish(&p.firsts);
	dcp_buf_finish(&p.candidates);
	dcp_buf_finish(&p.common);
	dcp_buf_finish(&p.text);
	return dcp_err_say(err, rc);
}

void dcp_rules_place_finish(struct dcp_rules_place *p)
{
	dcp_buf_finish(&p->prefix);
	dcp_buf_finish(&p->others);
}

bool dcp_rules_is_placed(const struct dcp_rules_place *p, const char *key)
{
	size_t n = p->prefix.n ? strlen(p->prefix.p) : 0;

	if (strncmp(key, p->prefix.n ? p->prefix.p : "", n) != 0 || dcp_rules_is_training(key))
		return false;
	for (size_t i = 0; i < p->others.n; i += strlen(p->others.p + i) + 1) {
		const char *other = p->others.p + i;

		if (strlen(other) > n && strncmp(key, other, strlen(other)) == 0)
			return false;
	}
	return true;
}
