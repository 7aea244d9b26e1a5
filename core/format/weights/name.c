/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/weights/name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"

enum { MAX_INDEX = 256 << 20 }; /* a million keys take some 100 MB */

static int parse_index(const struct dcp_source *src, struct dcp_weights_index *ix,
		       struct dcp_err *err)
{
	int rc = dcp_json_read(src, MAX_INDEX, NULL, &ix->json, err);

	if (rc < 0)
		return dcp_err_where(err, rc, "%s", ix->name);
	ix->map = dcp_json_get(ix->json, "weight_map");
	if (!dcp_json_is_object(ix->map))
		return dcp_fail(err, -EBADMSG, "%s has no weight_map object", ix->name);
	return 0;
}

static int dcp_weights_index_open(const struct dcp_dir *dir, const char *name,
				  struct dcp_weights_index *out, struct dcp_err *err)
{
	dcp_auto_input struct dcp_input in = { 0 };
	int rc;

	*out = (struct dcp_weights_index){ .name = name };
	rc = dcp_dir_input(dir, name, &in, err);
	if (rc < 0)
		return rc;
	rc = parse_index(&in.src, out, err);
	if (rc < 0)
		dcp_weights_index_finish(out);
	return rc;
}

int dcp_weights_index_read(const struct dcp_dir *dir, const struct dcp_sink *sink,
			   const char *name, struct dcp_weights_index *out, struct dcp_err *err)
{
	uint32_t number;
	int rc = dcp_emit_file(sink, name, &number);

	*out = (struct dcp_weights_index){ .name = name };
	return rc == 0 ? dcp_weights_index_open(dir, name, out, err) : rc;
}

void dcp_weights_index_finish(struct dcp_weights_index *ix)
{
	dcp_json_free(ix->json);
	*ix = (struct dcp_weights_index){ 0 };
}

const char *dcp_weights_index_file(const struct dcp_weights_index *ix, const char *key)
{
	return dcp_json_str(dcp_json_get(ix->map, key));
}

const char *dcp_weights_index_excuse(const struct dcp_weights_index *ix, const char *file,
				     int held, const char *broken, struct dcp_err *err)
{
	if (broken)
		dcp_fail(err, -EBADMSG, "%s", broken);
	else if (!file)
		dcp_fail(err, -EBADMSG, "%s names no file for it", ix->name);
	else if (strchr(file, '/'))
		dcp_fail(err, -EXDEV,
			 "%s says it is in %s: files in other directories are not opened",
			 ix->name, file);
	else
		dcp_fail(err, -EBADMSG,
			 held ? "%s says it is in %s, which does not hold it"
			      : "%s says it is in %s, which is missing",
			 ix->name, file);
	return err->msg;
}

enum {
	MAX_DIGITS = 6,     /* DeepSeek's are model-00001-of-000163 */
	MAX_PARTS = 100000, /* of one set; each takes one bit of memory */
	MAX_SETS = 16,      /* sets of one directory whose parts are counted */
};

/* ---- one name ---- */

static const struct {
	const char *suffix;
	enum dcp_weights_kind kind, index;
} containers[] = {
	{ ".safetensors", DCP_WEIGHTS_SAFETENSORS, DCP_WEIGHTS_SAFETENSORS_INDEX },
	{ ".bin", DCP_WEIGHTS_TORCH, DCP_WEIGHTS_TORCH_INDEX },
};

static bool cut_suffix(char *s, const char *suffix)
{
	if (!dcp_has_extension(s, suffix))
		return false;
	s[strlen(s) - strlen(suffix)] = '\0';
	return true;
}

/* "model.safetensors.index.fp16.json" -> "model.fp16" */
static bool cut_index(char *s, const char *suffix)
{
	char *at = strstr(s, suffix), *behind;
	size_t n = strlen(suffix), len = strlen(s);

	if (!at || at == s || strncmp(at + n, ".index", 6) != 0 || len < 5 ||
	    strcmp(s + len - 5, ".json") != 0)
		return false;
	behind = at + n + 6;
	if (*behind != '.')
		return false;
	s[len - 5] = '\0';
	memmove(at, behind, strlen(behind) + 1);
	return true;
}

static size_t count_digits(const char *s)
{
	return strspn(s, "0123456789");
}

/* Take "-00001-of-00003" out of @s. */
static bool cut_part(char *s, uint32_t *part, uint32_t *nparts)
{
	for (char *of = strstr(s, "-of-"); of; of = strstr(of + 1, "-of-")) {
		const char *first = dcp_digits_before(s, of), *p = first, *end = of + 4;
		uint64_t n, all;

		if (!dcp_take_number(&p, of, MAX_DIGITS, &n) ||
		    !dcp_take_number(&end, NULL, MAX_DIGITS, &all) || (*end && *end != '.') ||
		    first - s < 2 || !strchr("-_.", first[-1]))
			continue;
		*part = (uint32_t)n;
		*nparts = (uint32_t)all;
		if (*part < 1 || *part > *nparts || *nparts >= MAX_PARTS)
			continue;
		memmove(s + (first - s) - 1, end, strlen(end) + 1);
		return true;
	}
	*part = *nparts = 0;
	return false;
}

/* ColossalAI's parts do not say how many there are: "model-00001", and an index beside them. */
static void cut_number(char *set)
{
	static const char *const models[] = { "model-", "pytorch_model-", "adapter_model-" };

	for (size_t i = 0; i < DCP_LEN(models); i++) {
		size_t n = strlen(models[i]);

		if (strncmp(set, models[i], n) == 0 && count_digits(set + n) == 5 &&
		    !set[n + 5])
			set[n - 1] = '\0';
	}
}

enum dcp_weights_kind dcp_weights_name(const char *file, struct dcp_weights_name *out)
{
	char *set = out->set;
	const char *model = set + 6;
	uint64_t rank;
	size_t n = strlen(file);

	*out = (struct dcp_weights_name){ .kind = DCP_WEIGHTS_OTHER };
	if (n >= sizeof(out->set) || *file == '.')
		return DCP_WEIGHTS_OTHER;
	memcpy(set, file, n + 1);
	for (size_t i = 0; i < DCP_LEN(containers) && !out->kind; i++) {
		if (cut_suffix(set, containers[i].suffix))
			out->kind = containers[i].kind;
		else if (cut_index(set, containers[i].suffix))
			out->kind = containers[i].index;
	}
	cut_number(set);
	/* rank-00000-of-00002 counts from 0 and is no part but a set, with all that a rank has. */
	if (strncmp(set, "rank-", 5) != 0 && cut_part(set, &out->part, &out->nparts) &&
	    strncmp(set, "shard-", 6) == 0 &&
	    dcp_take_number(&model, NULL, DCP_ANY_DIGITS, &rank) && *model == '-')
		memmove(set, model + 1, strlen(model));
	return out->kind;
}

/* ---- sets ---- */

/* Is the part of @set before the variant @name, or (@numbered) @name, "_" and a number? */
static bool is_called(const char *set, const char *name, bool numbered)
{
	size_t n = strlen(name);

	if (strncmp(set, name, n) != 0)
		return false;
	if (numbered && set[n] == '_' && count_digits(set + n + 1) > 0)
		n += 1 + count_digits(set + n + 1);
	return !set[n] || set[n] == '.';
}

/* True for model-rank-0-part-2, also with another word in place of "model". */
bool dcp_weights_is_rank_part(const char *set)
{
	for (const char *at = strstr(set, "-rank-"); at; at = strstr(at + 1, "-rank-")) {
		const char *p = at + 6;
		uint64_t n;

		if (at > set && dcp_take_number(&p, NULL, MAX_DIGITS, &n) &&
		    dcp_take_text(&p, "-part-") && dcp_take_number(&p, NULL, MAX_DIGITS, &n) &&
		    !*p)
			return true;
	}
	return false;
}

unsigned dcp_weights_rank(const char *set)
{
	static const char *const models[] = { "model", "pytorch_model",
					      "diffusion_pytorch_model" };
	bool variant = strchr(set, '.') != NULL;

	if (is_called(set, "consolidated", false) || dcp_weights_is_rank_part(set))
		return DCP_WEIGHTS_RANK_TWIN;
	if (is_called(set, "adapter_model", false))
		return variant ? 4 : 2;
	for (size_t i = 0; i < DCP_LEN(models); i++)
		if (is_called(set, models[i], false))
			return variant ? 3 : 0;
	return variant ? 5 : 1;
}

bool dcp_weights_is_named(const char *set)
{
	unsigned rank = dcp_weights_rank(set);

	return (rank != 1 && rank != 5) || is_called(set, "model", true) ||
	       is_called(set, "pytorch_model", true);
}

/* Does @set hold the weights of a whole model: model, model_1, model.fp16? */
static bool is_model(const char *set)
{
	unsigned rank = dcp_weights_rank(set);

	return rank == 0 || rank == 3 || (rank == 1 && dcp_weights_is_named(set));
}

size_t dcp_weights_component(const char *set)
{
	unsigned rank = dcp_weights_rank(set);

	return rank == 3 || rank == 4 ? strcspn(set, ".") : strlen(set);
}

const char *dcp_weights_variant(const char *set)
{
	static const char *const words[] = { "fp16", "fp32",    "bf16",  "float16", "bfloat16",
					     "fp8",  "int8",    "int4",  "4bit",    "8bit",
					     "ema",  "non_ema", "no_ema" };
	const char *dot = set + dcp_weights_component(set);

	for (size_t i = 0; *dot && i < DCP_LEN(words); i++)
		if (strcmp(dot + 1, words[i]) == 0)
			return dot + 1;
	return NULL;
}

static enum dcp_weights_kind name_entry(const struct dcp_dirent *e,
					struct dcp_weights_name *out)
{
	return e->is_dir ? DCP_WEIGHTS_OTHER : dcp_weights_name(e->name, out);
}

bool dcp_weights_is_home(const struct dcp_dir *dir)
{
	static const char *const marks[] = {
		"config.json",      "adapter_config.json",   "generation_config.json",
		"model_index.json", "tokenizer_config.json", "trainer_state.json",
		"params.json"
	};
	struct dcp_weights_name name;

	for (size_t i = 0; i < DCP_LEN(marks); i++)
		if (dcp_dir_find(dir, marks[i]))
			return true;
	for (size_t i = 0; i < dir->n; i++)
		if (name_entry(&dir->entries[i], &name) != DCP_WEIGHTS_OTHER &&
		    dcp_weights_is_named(name.set))
			return true;
	return false;
}

bool dcp_weights_has_model(const struct dcp_dir *dir, enum dcp_weights_kind kind)
{
	struct dcp_weights_name name;

	for (size_t i = 0; i < dir->n; i++)
		if (name_entry(&dir->entries[i], &name) == kind &&
		    dcp_weights_rank(name.set) == 0)
			return true;
	return false;
}

bool dcp_weights_many_sets(const struct dcp_dir *dir, enum dcp_weights_kind kind)
{
	struct dcp_weights_name name, first;
	bool any = false;

	for (size_t i = 0; i < dir->n; i++) {
		if (name_entry(&dir->entries[i], &name) != kind)
			continue;
		if (any && strcmp(name.set, first.set) != 0)
			return true;
		first = name;
		any = true;
	}
	return false;
}

bool dcp_weights_has_torch(const struct dcp_dir *dir)
{
	static const char *const suffixes[] = { ".pt", ".pth", ".ckpt", ".bin" };

	for (size_t i = 0; i < dir->n; i++)
		for (size_t k = 0; !dir->entries[i].is_dir && k < DCP_LEN(suffixes); k++) {
			const char *dot = strrchr(dir->entries[i].name, '.');

			if (dot && strcmp(dot, suffixes[k]) == 0)
				return true;
		}
	return false;
}

/* ---- sets that are one version ---- */

static int note_name(struct dcp_intern *in, const char *name, size_t n)
{
	return dcp_intern_add(in, name, n, DCP_INTERN_NONE, NULL);
}

/* Count @set as hidden if it is another variant of a set that is shown. If the word after the dot
 * is not a known variant, @set is hidden only beside the set without the word. */
static int sort_set(struct dcp_weights_sets *s, const char *set)
{
	size_t n = dcp_weights_component(set);
	bool hide = set[n] && dcp_intern_find(&s->all, set, n) != DCP_INTERN_NONE;
	int rc = 1;

	if (!hide && dcp_weights_variant(set)) {
		rc = note_name(&s->variants, set, n);
		hide = rc == 0;
	}
	if (rc >= 0)
		rc = hide ? note_name(&s->hidden, set, strlen(set))
			  : note_name(&s->components, set, n);
	s->nmodels += rc == 1 && !hide && is_model(set);
	return rc;
}

int dcp_weights_sets_read(struct dcp_weights_sets *s, const struct dcp_dir *dir,
			  enum dcp_weights_kind kind)
{
	bool twins = dcp_weights_has_model(dir, kind);
	struct dcp_weights_name name;
	int rc = 0;

	*s = (struct dcp_weights_sets){ 0 };
	for (size_t i = 0; rc >= 0 && i < dir->n; i++)
		if (name_entry(&dir->entries[i], &name) == kind &&
		    !(twins && dcp_weights_rank(name.set) == DCP_WEIGHTS_RANK_TWIN))
			rc = note_name(&s->all, name.set, strlen(name.set));
	for (uint32_t i = 0; rc >= 0 && i < s->all.n; i++)
		rc = sort_set(s, dcp_intern_text(&s->all, i));
	return rc < 0 ? -ENOMEM : 0;
}

bool dcp_weights_sets_hide(const struct dcp_weights_sets *s, const char *set)
{
	return dcp_intern_has(&s->hidden, set);
}

bool dcp_weights_sets_bare(const struct dcp_weights_sets *s, const char *set)
{
	return s->components.n <= 1 || (s->nmodels == 1 && is_model(set));
}

void dcp_weights_sets_finish(struct dcp_weights_sets *s)
{
	dcp_intern_finish(&s->all);
	dcp_intern_finish(&s->hidden);
	dcp_intern_finish(&s->variants);
	dcp_intern_finish(&s->components);
}

/* ---- indexes ---- */

const char *dcp_weights_index_name(const struct dcp_dir *dir, enum dcp_weights_kind index)
{
	unsigned best = DCP_WEIGHTS_RANK_TWIN + 1;
	const char *found = NULL;
	struct dcp_weights_name name;

	for (size_t i = 0; i < dir->n; i++)
		if (name_entry(&dir->entries[i], &name) == index &&
		    dcp_weights_rank(name.set) < best) {
			best = dcp_weights_rank(name.set);
			found = dir->entries[i].name;
		}
	return found;
}

/* ---- are all parts there? ---- */

/* The files of one set whose names give the same number of parts. */
struct parts {
	struct dcp_weights_name name; /* of the first */
	const char *file;
	uint32_t have;
	uint8_t *seen; /* bit part - 1; NULL: out of memory, the set is taken as complete */
};

static struct parts *find_parts(struct parts *all, size_t *n,
				const struct dcp_weights_name *name, const char *file)
{
	struct parts *p;

	for (size_t i = 0; i < *n; i++)
		if (all[i].name.nparts == name->nparts &&
		    strcmp(all[i].name.set, name->set) == 0)
			return &all[i];
	if (*n == MAX_SETS)
		return NULL;
	p = &all[(*n)++];
	*p = (struct parts){ *name, file, 0, calloc(name->nparts / 8 + 1, 1) };
	return p;
}

static void count_part(struct parts *all, size_t *n, const struct dcp_weights_name *name,
		       const char *file)
{
	struct parts *p = find_parts(all, n, name, file);
	uint32_t bit = name->part - 1;

	if (!p || !p->seen || p->seen[bit / 8] & (1u << (bit % 8)))
		return;
	p->seen[bit / 8] |= (uint8_t)(1u << (bit % 8));
	p->have++;
}

/* The name of the first missing part, spelled like a part that exists. */
static void say_missing(const struct parts *p, char *why, size_t size)
{
	const char *file = p->file, *at;
	uint32_t part = 1;
	size_t width;

	while (p->seen[(part - 1) / 8] & (1u << ((part - 1) % 8)))
		part++;
	if (strncmp(file, "shard-", 6) == 0)
		file += 7 + count_digits(file + 6);
	at = strstr(file, "-of-");
	at = dcp_digits_before(file, at);
	width = count_digits(at);
	snprintf(why, size,
		 "%.*s%0*u%s is missing (%u of %u are there): the save was interrupted or is "
		 "still running",
		 (int)(at - file), file, (int)width, part, at + width, p->have, p->name.nparts);
}

/* The number of parts of @set according to the index @name: the number in the name of the first
 * file of @set that the index lists and that exists. UINT32_MAX: the index lists no such file, or
 * cannot be read. */
static uint32_t named_parts(const struct dcp_dir *dir, const char *name, const char *set)
{
	const struct dcp_json *value;
	uint32_t n = UINT32_MAX;
	struct dcp_weights_name file;
	struct dcp_weights_index ix;
	const void *iter = NULL;
	const char *key, *at;
	struct dcp_err unused;

	if (dcp_weights_index_open(dir, name, &ix, &unused) < 0)
		return n;
	while (n == UINT32_MAX && (iter = dcp_json_next(ix.map, iter, &key, &value))) {
		at = dcp_json_str(value);
		if (at && dcp_weights_name(at, &file) != DCP_WEIGHTS_OTHER &&
		    strcmp(file.set, set) == 0 && dcp_dir_find(dir, at))
			n = file.nparts;
	}
	dcp_weights_index_finish(&ix);
	return n;
}

/* Is @p left over from an older save? It is if the same set is complete in another number of parts
 * and an index names those parts. Without the index, @p may belong to a save that still runs. */
static bool is_left_over(const struct dcp_dir *dir, const struct parts *all, size_t n,
			 const struct parts *p)
{
	enum dcp_weights_kind index = p->name.kind == DCP_WEIGHTS_TORCH
					      ? DCP_WEIGHTS_TORCH_INDEX
					      : DCP_WEIGHTS_SAFETENSORS_INDEX;
	struct dcp_weights_name name;

	for (size_t i = 0; i < n; i++) {
		if (!all[i].seen || all[i].have < all[i].name.nparts ||
		    strcmp(all[i].name.set, p->name.set) != 0)
			continue;
		for (size_t k = 0; k < dir->n; k++)
			if (name_entry(&dir->entries[k], &name) == index &&
			    named_parts(dir, dir->entries[k].name, p->name.set) ==
				    all[i].name.nparts)
				return true;
	}
	return false;
}

enum dcp_match dcp_weights_check_parts(const struct dcp_dir *dir, enum dcp_weights_kind kind,
				       char *why, size_t size)
{
	bool twins = dcp_weights_has_model(dir, kind);
	enum dcp_match match = DCP_MATCH_NO;
	struct parts all[MAX_SETS];
	struct dcp_weights_name name;
	size_t n = 0;

	for (size_t i = 0; i < dir->n; i++) {
		if (name_entry(&dir->entries[i], &name) != kind ||
		    (twins && dcp_weights_rank(name.set) == DCP_WEIGHTS_RANK_TWIN))
			continue;
		match = DCP_MATCH_YES;
		if (name.nparts)
			count_part(all, &n, &name, dir->entries[i].name);
	}
	for (size_t i = 0; i < n; i++) {
		if (match == DCP_MATCH_YES && all[i].seen && all[i].have < all[i].name.nparts &&
		    !is_left_over(dir, all, n, &all[i])) {
			say_missing(&all[i], why, size);
			match = DCP_MATCH_INCOMPLETE;
		}
	}
	for (size_t i = 0; i < n; i++)
		free(all[i].seen);
	return match;
}
