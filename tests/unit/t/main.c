/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of unit tests: `test_model` runs those of all its files, `test_model model/layout`
 * those of a folder, `test_model model/layout/cut` those of one file. Exits with 0 when all pass.
 */
#include "tests/unit/t.h"

static const struct t_tests *all;

void t_tests_add(struct t_tests *tests)
{
	tests->next = all;
	all = tests;
}

/* Is @file, a path of the compiler's, @name.c in tests/unit/ or in the folder @name there? */
static bool is_in(const char *file, const char *name)
{
	const char *path = strstr(file, "tests/unit/");
	size_t n = strlen(name);

	if (!path || strncmp(path += strlen("tests/unit/"), name, n) != 0)
		return false;
	return path[n] == '/' || strcmp(path + n, ".c") == 0;
}

int main(int argc, char **argv)
{
	int failed = 0;

	for (int i = 1; i < argc || i == 1; i++) {
		int found = 0;

		for (const struct t_tests *t = all; t; t = t->next) {
			if (i < argc && !is_in(t->file, argv[i]))
				continue;
			found++;
			failed |= t->run() != 0;
		}
		if (!found) {
			fprintf(stderr, "%s: no tests in tests/unit/%s\n", argv[0], argv[i]);
			failed = 1;
		}
	}
	return failed;
}
