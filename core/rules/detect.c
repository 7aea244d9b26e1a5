/* SPDX-License-Identifier: Apache-2.0 */
/* Which preset do the keys of a checkpoint need? Each says itself what it is known by. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/rules/map.h"

static const char last_resort[] = "hf";

struct candidate {
	struct dcp_rules *r;
	/* By mark and pattern: how many keys match; of has and lacks only whether any does. */
	uint64_t seen[DCP_RULES_MAX_MARKS][DCP_RULES_MAX_SOURCES];
};

struct detection {
	struct candidate *c;
	size_t n;
	struct dcp_buf text;
	bool lora, others; /* keys of low-rank weights; keys of other weights */
};

static bool is_of_model(const struct dcp_rules *r, const struct dcp_rules_config *config)
{
	if (!r->nmodel || !config || !config->model_type[0])
		return true;
	for (size_t i = 0; i < r->nmodel; i++)
		if (strcmp(r->model[i].text, config->model_type) == 0)
			return true;
	return false;
}

static int look_at_key(void *ctx, uint64_t number, const char *key)
{
	struct detection *d = ctx;
	enum dcp_lora lora = dcp_rules_lora(key);

	d->lora |= lora == DCP_LORA_YES;
	d->others |= lora == DCP_LORA_NO;
	for (size_t i = 0; i < d->n; i++) {
		struct candidate *c = &d->c[i];
		const char *bare = c->r ? dcp_rules_bare_key(c->r, key, &d->text) : NULL;
		size_t n = bare ? strlen(bare) : 0;

		for (size_t k = 0; bare && k < c->r->nmark; k++)
			for (uint32_t j = 0; j < c->r->mark[k].n; j++) {
				struct slot_value value[DCP_RULES_MAX_SLOTS];

				if (!c->seen[k][j] || c->r->mark[k].kind == MARK_FEWER)
					c->seen[k][j] += dcp_rules_match(
						&c->r->mark[k].pattern[j], bare, n, value);
			}
	}
	return dcp_buf_error(&d->text);
}

/* Every pattern of one of the lines with "has" was seen, none of those with "lacks", and of
 * those with "fewer" the second more often than the first. */
static bool is_it(const struct candidate *c)
{
	bool has = false;

	for (size_t k = 0; c->r && k < c->r->nmark; k++) {
		const struct mark *m = &c->r->mark[k];
		uint32_t seen = 0;

		for (uint32_t j = 0; j < m->n; j++)
			seen += c->seen[k][j] > 0;
		if (m->kind == MARK_LACKS && seen)
			return false;
		if (m->kind == MARK_FEWER && c->seen[k][0] >= c->seen[k][1])
			return false;
		has |= m->kind == MARK_HAS && seen == m->n;
	}
	return has;
}

/* Files that only torch writes, and programs that use it. */
static bool is_by_torch(const char *by)
{
	static const char *const all[] = { "torch", "megatron", "deepspeed", "composer" };
	bool is = false;

	for (size_t i = 0; by && i < DCP_LEN(all); i++)
		is |= strncmp(by, all[i], strlen(all[i])) == 0;
	return is;
}

/*
 * "@paddle": linear weights are [inputs, outputs]; "@unknown": it is not known whether they
 * are. Where shapes decide, the writer does not matter: Paddle also exports its weights as
 * transformers has them. What torch wrote is taken as it is: a weight that is [inputs, outputs]
 * there is used so.
 */
static int look_at_linear(const struct dcp_rules_source *from, struct detection *d,
			  struct dcp_err *err)
{
	const char *by = from->framework;
	enum linear order = LINEAR_OUT_IN;
	int rc = is_by_torch(by) ? 0 : dcp_rules_linear(from, &order, err);

	if (rc < 0 || order == LINEAR_OUT_IN)
		return rc;
	if (order == LINEAR_IN_OUT || (by && strcmp(by, "paddle") == 0))
		return look_at_key(d, 0, "@paddle");
	return order == LINEAR_UNKNOWN && !by ? look_at_key(d, 0, "@unknown") : 0;
}

int dcp_rules_detect(const struct dcp_rules_source *from, struct dcp_rules_preset *out,
		     struct dcp_err *err)
{
	struct detection d = { .n = dcp_rules_npresets };
	size_t found = SIZE_MAX;
	int rc = 0;

	d.c = calloc(d.n, sizeof(*d.c));
	if (!d.c)
		return dcp_err_say(err, -ENOMEM);
	for (size_t i = 0; rc == 0 && i < d.n; i++) {
		rc = dcp_rules_preset(dcp_rules_presets[i].name, &d.c[i].r, err);
		if (rc == 0 && !is_of_model(d.c[i].r, from->config)) {
			dcp_rules_free(d.c[i].r);
			d.c[i].r = NULL;
		}
	}
	if (rc == 0)
		rc = from->list(from->ctx, look_at_key, &d, err);
	if (rc == 0 && d.lora && !d.others)
		rc = look_at_key(&d, 0, "@lora");
	if (rc == 0)
		rc = look_at_linear(from, &d, err);
	if (rc == 0 && from->placed)
		rc = look_at_key(&d, 0, "@placed");
	for (size_t i = 0; rc == 0 && i < d.n && found == SIZE_MAX; i++)
		if (is_it(&d.c[i]) || strcmp(dcp_rules_presets[i].name, last_resort) == 0)
			found = i;
	if (rc == 0)
		*out = dcp_rules_presets[found];
	for (size_t i = 0; i < d.n; i++)
		dcp_rules_free(d.c[i].r);
	dcp_buf_finish(&d.text);
	free(d.c);
	return dcp_err_say(err, rc);
}
