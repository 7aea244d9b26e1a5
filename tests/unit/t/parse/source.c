/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/parse/source.h"

#include "core/base/base.h"
#include "tests/unit/t.h"

static int counted_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	/* The counters are the test's: a source is const to its readers only. */
	struct t_source *s = (struct t_source *)(uintptr_t)src;

	if (++s->calls == s->fail_at)
		return s->code;
	return s->under->read(s->under, off, buf, n);
}

void t_source_init(struct t_source *s, const struct dcp_source *under)
{
	*s = (struct t_source){ .base = { .read = counted_read, .size = under->size },
				.under = under,
				.code = -EIO };
}

char *t_file(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	char *p = NULL;
	long size;

	if (!f || fseek(f, 0, SEEK_END) < 0)
		fail_msg("%s: %s", path, strerror(errno));
	size = ftell(f);
	rewind(f);
	p = malloc((size_t)size + 1); /* never NULL, and a NUL behind */
	if (!p || fread(p, 1, (size_t)size, f) != (size_t)size)
		fail_msg("%s: cannot be read", path);
	p[size] = '\0';
	fclose(f);
	*n = (size_t)size;
	return p;
}

static int code_of(const char *name)
{
	static const struct {
		const char *name;
		int code;
	} codes[] = {
		{ "EBADMSG", -EBADMSG }, { "ENOTSUP", -ENOTSUP }, { "E2BIG", -E2BIG },
		{ "ENOMEM", -ENOMEM },   { "EIO", -EIO },         { "OK", 0 },
	};

	for (size_t i = 0; i < DCP_LEN(codes); i++)
		if (strcmp(codes[i].name, name) == 0)
			return codes[i].code;
	fail_msg("no code named %s", name);
	return 0;
}

void t_bad_each(const char *dir, t_bad_fn fn)
{
	char path[512], *line, *rest = NULL;
	dcp_auto_free char *list = NULL;
	size_t n;

	snprintf(path, sizeof(path), "%s/EXPECT", dir);
	list = t_file(path, &n);
	for (line = strtok_r(list, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *says = NULL, *name = strtok_r(line, " ", &says);
		char *code = strtok_r(NULL, " ", &says);
		dcp_auto_free char *p = NULL;

		assert_non_null(code);
		t_case(name);
		snprintf(path, sizeof(path), "%s/%s", dir, name);
		p = t_file(path, &n);
		fn(name, p, n, code_of(code), says);
	}
}
