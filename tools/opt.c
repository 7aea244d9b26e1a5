/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/opt.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/text.h"

static void *slot_of(void *into, const struct opt *o)
{
	return (char *)into + o->off;
}

static void put_number(const struct opt *o, void *into, uint64_t v)
{
	if (o->bytes == sizeof(uint32_t))
		*(uint32_t *)slot_of(into, o) = (uint32_t)v;
	else
		*(uint64_t *)slot_of(into, o) = v;
}

/* Put the defaults of @opts, and of its sub tables, into @into. */
static void set_defaults(const struct opt *opts, void *into)
{
	for (; opts->name; opts++) {
		if (opts->kind == OPT_UINT || opts->kind == OPT_OCTAL || opts->kind == OPT_SIZE)
			put_number(opts, into, opts->def);
		if (opts->kind == OPT_CHOICE)
			*(int *)slot_of(into, opts) = (int)opts->def;
		if (opts->kind == OPT_LIST)
			set_defaults(opts->sub, into);
	}
}

static bool read_digits(const char *s, size_t n, unsigned base, uint64_t *out)
{
	uint64_t v = 0;

	for (size_t i = 0; i < n; i++) {
		unsigned digit = (unsigned)s[i] - '0';

		if (s[i] < '0' || digit >= base)
			return false;
		if (__builtin_mul_overflow(v, (uint64_t)base, &v) ||
		    __builtin_add_overflow(v, (uint64_t)digit, &v))
			return false;
	}
	*out = v;
	return n > 0;
}

bool opt_number(const char *s, unsigned base, uint64_t *out)
{
	return read_digits(s, strlen(s), base, out);
}

/* Bytes: "1000", "500MB" (of 1000), "32GiB" or "32G" (of 1024), up to P; kB and KB are the same. */
static bool parse_size(const char *s, uint64_t *out)
{
	static const char units[] = "KMGTP";
	size_t n = strspn(s, "0123456789");
	const char *unit = s[n] == 'k' ? units : s[n] ? strchr(units, s[n]) : NULL;
	const char *rest = s + n + (unit != NULL);
	uint64_t v, base = 1024;

	if (unit && strcmp(rest, "B") == 0)
		base = 1000;
	else if (*rest && strcmp(rest, unit ? "iB" : "B") != 0)
		return false;
	if (!read_digits(s, n, 10, &v))
		return false;
	for (; unit && unit >= units; unit--)
		if (__builtin_mul_overflow(v, base, &v))
			return false;
	*out = v;
	return true;
}

static int set_number(const struct opt *o, const char *dashes, const char *value, void *into,
		      struct dcp_err *err)
{
	unsigned base = o->kind == OPT_OCTAL ? 8 : 10;
	uint64_t v, max = o->max ? o->max : UINT64_MAX;

	if (!opt_number(value, base, &v) || v > max) {
		if (base == 8)
			return dcp_fail(err, -EINVAL,
					"%s%s takes an octal number up to 0%llo, not \"%s\"",
					dashes, o->name, (unsigned long long)max, value);
		return dcp_fail(err, -EINVAL, "%s%s takes a number from 0 to %llu, not \"%s\"",
				dashes, o->name, (unsigned long long)max, value);
	}
	put_number(o, into, v);
	return 0;
}

static int set_choice(const struct opt *o, const char *value, void *into, struct dcp_err *err)
{
	char all[128] = "";

	for (int i = 0; o->choices[i]; i++) {
		size_t used = strlen(all);

		if (strcasecmp(o->choices[i], value) == 0) {
			*(int *)slot_of(into, o) = i;
			return 0;
		}
		if (used + strlen(o->choices[i]) + 3 < sizeof(all)) {
			if (i)
				strcat(all, ", ");
			strcat(all, o->choices[i]);
		}
	}
	return dcp_fail(err, -EINVAL, "--%s takes one of %s, not \"%s\"", o->name, all, value);
}

static int add_text(const struct opt *o, const char *dashes, const char *value,
		    struct opt_texts *into, struct dcp_err *err)
{
	if (into->n == OPT_MAX_TEXTS)
		return dcp_fail(err, -EINVAL, "%s%s: at most %d times", dashes, o->name,
				OPT_MAX_TEXTS);
	into->v[into->n++] = value;
	return 0;
}

static int parse_list(const struct opt *sub, char *text, void *into, struct dcp_err *err);

static int set_value(const struct opt *o, const char *dashes, char *value, void *into,
		     struct dcp_err *err)
{
	switch (o->kind) {
	case OPT_FLAG:
		*(bool *)slot_of(into, o) = true;
		return 0;
	case OPT_TEXT:
		*(const char **)slot_of(into, o) = value;
		return 0;
	case OPT_TEXTS:
		return add_text(o, dashes, value, slot_of(into, o), err);
	case OPT_UINT:
	case OPT_OCTAL:
		return set_number(o, dashes, value, into, err);
	case OPT_SIZE:
		if (parse_size(value, slot_of(into, o)))
			return 0;
		return dcp_fail(err, -EINVAL,
				"%s%s takes bytes, like 500MB or 32GiB, not \"%s\"", dashes,
				o->name, value);
	case OPT_CHOICE:
		return set_choice(o, value, into, err);
	case OPT_LIST:
		return parse_list(o->sub, value, into, err);
	case OPT_PASS:
	case OPT_FORM:
	case OPT_OPERAND: /* see set_option() */
		return 0;
	case OPT_REFUSE:
		return dcp_fail(err, -EINVAL, "%s%s: %s", dashes, o->name, o->help);
	}
	return -EINVAL;
}

const struct opt *opt_by_name(const struct opt *opts, const char *name, size_t n)
{
	for (; opts->name; opts++) {
		size_t have = strlen(opts->name);

		if (have == n && memcmp(opts->name, name, n) == 0)
			return opts;
		if (have && opts->name[have - 1] == '*' && n >= have - 1 &&
		    memcmp(opts->name, name, have - 1) == 0)
			return opts;
	}
	return NULL;
}

const struct opt *opt_by_letter(const struct opt *opts, char letter)
{
	for (; opts->name; opts++)
		if (opts->letter == letter)
			return opts;
	return NULL;
}

static int fail_unknown(const struct opt *opts, const char *dashes, const char *name,
			struct dcp_err *err)
{
	struct dcp_near near = dcp_near_to(name);
	const char *nearest = NULL;

	for (; opts->name; opts++)
		if (dcp_near_take(&near, opts->name))
			nearest = opts->name;
	if (nearest)
		return dcp_fail(err, -EINVAL, "no option %s%s; nearest is %s%s", dashes, name,
				dashes, nearest);
	return dcp_fail(err, -EINVAL, "no option %s%s", dashes, name);
}

/* Parse a comma-separated list by its table. @text is cut apart. */
static int parse_list(const struct opt *sub, char *text, void *into, struct dcp_err *err)
{
	char *rest = text, *item;

	while ((item = strsep(&rest, ","))) {
		char *value = strchr(item, '=');
		const struct opt *o;
		int rc;

		if (!*item)
			continue;
		o = opt_by_name(sub, item, value ? (size_t)(value - item) : strlen(item));
		if (!o)
			return fail_unknown(sub, "-o ", item, err);
		if (o->arg && !value)
			return dcp_fail(err, -EINVAL, "-o %s needs =%s", o->name, o->arg);
		if (!o->arg && value && o->kind != OPT_PASS)
			return dcp_fail(err, -EINVAL, "-o %s takes no value, found \"%s\"",
					o->name, item);
		rc = set_value(o, "-o ", value ? value + 1 : NULL, into, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

struct parse {
	const struct opt *opts;
	const struct opt_operand *operands;
	int argc, at; /* at: the next word */
	char **argv;
	void *into;
	struct dcp_err *err;
	const char *named[OPT_MAX_OPERANDS]; /* operands given by an option */
	const char *word[OPT_MAX_OPERANDS];  /* the others, in order */
	size_t n;
	const char *extra; /* a word too many for these */
};

static int set_form(struct parse *p, const struct opt *o, const char *file)
{
	int *form = slot_of(p->into, o);

	for (const struct opt *other = p->opts; *form && other->name; other++)
		if (other->kind == OPT_FORM && other->def == (uint64_t)*form && other != o)
			return dcp_fail(p->err, -EINVAL, "--%s and --%s do not go together",
					other->name, o->name);
	*form = (int)o->def;
	if (file)
		*(const char **)(void *)((char *)p->into + o->file) = file;
	return 0;
}

static int set_option(struct parse *p, const struct opt *o, char *value)
{
	if (o->kind == OPT_FORM)
		return set_form(p, o, value);
	if (o->kind != OPT_OPERAND)
		return set_value(o, "--", value, p->into, p->err);
	for (size_t i = 0; i < OPT_MAX_OPERANDS && p->operands[i].name; i++)
		if (p->operands[i].what == o->what)
			p->named[i] = value;
	return 0;
}

static int parse_long(struct parse *p, char *word)
{
	char *value = strchr(word, '=');
	const struct opt *o =
		opt_by_name(p->opts, word, value ? (size_t)(value++ - word) : strlen(word));

	if (!o)
		return fail_unknown(p->opts, "--", word, p->err);
	if (!o->arg && !o->ext && value)
		return dcp_fail(p->err, -EINVAL, "--%s takes no value, found \"%s\"", o->name,
				value);
	if (o->ext && !value && p->at < p->argc && dcp_has_extension(p->argv[p->at], o->ext))
		value = p->argv[p->at++];
	if (o->arg && !value) {
		if (p->at == p->argc)
			return dcp_fail(p->err, -EINVAL, "--%s needs %s", o->name, o->arg);
		value = p->argv[p->at++];
	}
	return set_option(p, o, value);
}

/* "-lf" is -l -f; "-oro" and "-o ro" are the same. */
static int parse_letters(struct parse *p, char *word, struct opt_args *args)
{
	for (; *word; word++) {
		const struct opt *o = opt_by_letter(p->opts, *word);
		char *value = NULL;
		int rc;

		if (!o && *word == 'h') {
			args->help = true;
			return 0;
		}
		if (!o && *word == 'q') {
			args->quiet = true;
			continue;
		}
		if (!o)
			return dcp_fail(p->err, -EINVAL, "no option -%c", *word);
		if (o->arg) {
			if (word[1])
				value = word + 1;
			else if (p->at < p->argc)
				value = p->argv[p->at++];
			else
				return dcp_fail(p->err, -EINVAL, "-%c needs %s", *word, o->arg);
		}
		rc = set_option(p, o, value);
		if (rc < 0 || o->arg)
			return rc;
	}
	return 0;
}

/* Assign every word to its row; see struct opt_args. */
static int place_operands(const struct parse *p, struct opt_args *args)
{
	const struct opt_operand *o = p->operands;
	size_t max = 0, required = 0, optional = 0, skip, at = 0;
	const char *named = NULL;

	for (; max < OPT_MAX_OPERANDS && o[max].name; max++) {
		if (o[max].what == OPT_COMMAND)
			break; /* its words are no operands */
		required += !p->named[max] && !o[max].optional;
		optional += !p->named[max] && o[max].optional;
	}
	skip = p->n > required ? optional - DCP_MIN(optional, p->n - required) : optional;
	for (size_t i = 0; i < max; i++) {
		if (p->named[i])
			args->operand[i] = p->named[i], named = o[i].name;
		else if (o[i].optional && skip > 0)
			skip--;
		else if (at < p->n)
			args->operand[i] = p->word[at++];
		if (!args->operand[i] && !o[i].optional)
			return dcp_fail(p->err, -EINVAL, "%s is missing", o[i].name);
		if (args->operand[i] && !*args->operand[i] &&
		    (o[i].what == OPT_SOURCE || o[i].what == OPT_DIR ||
		     o[i].what == OPT_MOUNT || o[i].what == OPT_VERSION))
			return dcp_fail(p->err, -EINVAL,
					"%s is an empty word: a variable that is not set?",
					o[i].name);
	}
	args->named = named;
	if (at < p->n || p->extra)
		return dcp_fail(p->err, -EINVAL, "\"%s\" is one operand too many%s%s%s",
				at < p->n ? p->word[at] : p->extra, named ? ": " : "",
				named ? named : "", named ? " was given by an option" : "");
	return 0;
}

static bool takes_command(const struct opt_operand *o)
{
	while (o->name && o->what != OPT_COMMAND)
		o++;
	return o->name;
}

int opt_parse(const struct opt *opts, const struct opt_operand *operands, int argc, char **argv,
	      void *into, struct opt_args *args, struct dcp_err *err)
{
	struct parse p = { .opts = opts,
			   .operands = operands,
			   .argc = argc,
			   .argv = argv,
			   .into = into,
			   .err = err };
	bool only_operands = false;

	*args = (struct opt_args){ 0 };
	set_defaults(opts, into);
	while (p.at < argc) {
		char *word = argv[p.at++];
		int rc = 0;

		if (only_operands || word[0] != '-' || !word[1]) {
			if (p.n < OPT_MAX_OPERANDS)
				p.word[p.n++] = word;
			else if (!p.extra)
				p.extra = word;
		} else if (strcmp(word, "--") == 0) {
			if (takes_command(operands)) {
				args->command = p.at < argc ? &argv[p.at] : NULL;
				break;
			}
			only_operands = true;
		} else if (strcmp(word, "--help") == 0) {
			args->help = true;
		} else if (strcmp(word, "--quiet") == 0) {
			args->quiet = true;
		} else if (strcmp(word, "--json-progress") == 0) {
			args->json_progress = true;
		} else if (word[1] == '-') {
			rc = parse_long(&p, word + 2);
		} else {
			rc = parse_letters(&p, word + 1, args);
		}
		if (rc < 0 || args->help)
			return rc;
	}
	return place_operands(&p, args);
}

static const char *yes_or_no(bool yes)
{
	return yes ? "yes" : "no";
}

/* A default may be none of the choices. */
static const char *choice_name(const char *const *choices, int at)
{
	for (int i = 0; choices[i]; i++)
		if (i == at)
			return choices[i];
	return "";
}

void opt_value(const struct opt *o, const void *values, struct dcp_buf *out)
{
	const void *at = (const char *)values + o->off;
	const struct opt_texts *texts = at;

	switch (o->kind) {
	case OPT_FLAG:
		dcp_buf_str(out, yes_or_no(*(const bool *)at));
		break;
	case OPT_TEXT: {
		const char *text = *(const char *const *)at;

		dcp_buf_str(out, o->alike == OPT_GIVEN ? yes_or_no(text) : text ? text : "no");
		break;
	}
	case OPT_TEXTS:
		for (size_t i = 0; i < texts->n; i++)
			dcp_buf_printf(out, "%s%s", i ? "," : "", texts->v[i]);
		break;
	case OPT_CHOICE:
		dcp_buf_str(out, choice_name(o->choices, *(const int *)at));
		break;
	case OPT_UINT:
	case OPT_OCTAL:
	case OPT_SIZE:
		dcp_buf_printf(out, "%llu",
			       (unsigned long long)(o->bytes == sizeof(uint32_t)
							    ? *(const uint32_t *)at
							    : *(const uint64_t *)at));
		break;
	case OPT_LIST:
	case OPT_PASS:
	case OPT_REFUSE:
	case OPT_FORM:
	case OPT_OPERAND:
		break;
	}
}
