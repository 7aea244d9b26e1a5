/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver: main() for a fuzz target without libFuzzer, so that any compiler replays a find.
 *
 *	fuzz_zip [--mutate N] [--seed S] [--verbose] PATH... [--if-present PATH]...
 *
 * A PATH is a file or a directory of them at any depth. Each file is given to the target as it
 * is, and then N times damaged: bits flipped, bytes replaced, cut short, ranges moved. Damage
 * depends on the seed, the file's length and its number alone, so a run can be repeated. When
 * the target dies, the input is named on stderr and kept beside the program, <target>.crash.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/t/random.h"

#define MAX_FILE (64u << 20)
#define MAX_DAMAGED (1u << 20) /* larger files are replayed whole, not damaged */
#define MAX_DEPTH 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Given by the address sanitizer's runtime; called before it ends the program. */
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static struct {
	const char *self; /* argv[0] */
	unsigned mutate, inputs;
	uint64_t seed;
	bool verbose;
} run = { .seed = 1 };

/* What the target is looking at, for the one who dies on it. */
static struct {
	const char *path;
	unsigned damage;
	const uint8_t *p;
	size_t n;
} now;

static void keep_input(void)
{
	char to[4096];
	int fd;

	if (!now.path)
		return;
	snprintf(to, sizeof(to), "%s.crash", run.self);
	fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	dprintf(2, "%s: died on %s, damage %u, seed %llu, %zu bytes; kept in %s\n", run.self,
		now.path, now.damage, (unsigned long long)run.seed, now.n,
		fd >= 0 && write(fd, now.p, now.n) == (ssize_t)now.n ? to : "no file");
	now.path = NULL;
}

static void on_death(int sig)
{
	keep_input();
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Change @p in place; the new length, never more than the old. */
static size_t damage_input(uint8_t *p, size_t n, uint64_t *state)
{
	static const uint8_t odd[] = { 0, 1, 0x7f, 0x80, 0xff, '(', '.', '"', '{' };
	unsigned times = 1 + (unsigned)(t_random64(state) % 4);

	while (times-- && n) {
		size_t at = t_random64(state) % n, to = t_random64(state) % n, len;

		switch (t_random64(state) % 6) {
		case 0:
			p[at] ^= (uint8_t)(1u << t_random64(state) % 8);
			break;
		case 1:
			p[at] = (uint8_t)t_random64(state);
			break;
		case 2:
			p[at] = odd[t_random64(state) % sizeof(odd)];
			break;
		case 3:
			len = n - (at > to ? at : to);
			memmove(p + to, p + at, len < 16 ? len : t_random64(state) % 16);
			break;
		case 4:
			memset(p + at, (int)odd[t_random64(state) % sizeof(odd)],
			       n - at < 8 ? n - at : 8);
			break;
		default:
			n = at;
		}
	}
	return n;
}

/* Exactly @n bytes on the heap, so that a sanitizer sees a read one past them. */
static void give_input(const char *path, const uint8_t *p, size_t n, unsigned number)
{
	uint64_t state = run.seed * 0x100000001b3u + number * 0x10001u + n;
	uint8_t *copy = malloc(n ? n : 1), *exact;

	if (!copy)
		abort();
	if (n)
		memcpy(copy, p, n);
	if (number)
		n = damage_input(copy, n, &state);
	exact = realloc(copy, n ? n : 1);
	if (!exact)
		abort();
	if (run.verbose)
		fprintf(stderr, "%s: damage %u, %zu bytes\n", path, number, n);
	now.path = path;
	now.damage = number;
	now.p = exact;
	now.n = n;
	LLVMFuzzerTestOneInput(exact, n);
	now.path = NULL;
	run.inputs++;
	free(exact);
}

static int replay_file(const char *path, int fd, size_t n)
{
	uint8_t *p = malloc(n ? n : 1);
	size_t got = 0;

	while (p && got < n) {
		ssize_t r = read(fd, p + got, n - got);

		if (r <= 0)
			break;
		got += (size_t)r;
	}
	if (!p || got < n) {
		fprintf(stderr, "%s: %s: cannot read\n", run.self, path);
		free(p);
		return 1;
	}
	give_input(path, p, n, 0);
	for (unsigned i = 1; i <= run.mutate && n && n <= MAX_DAMAGED; i++)
		give_input(path, p, n, i);
	free(p);
	return 0;
}

static int replay_path(const char *path, bool may_lack, unsigned depth);

static int not_dot(const struct dirent *d)
{
	return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int replay_dir(const char *path, unsigned depth)
{
	struct dirent **names;
	int n = scandir(path, &names, not_dot, alphasort), bad = n < 0;

	for (int i = 0; i < n; i++) {
		char *below;

		if (asprintf(&below, "%s/%s", path, names[i]->d_name) < 0)
			abort();
		bad |= replay_path(below, false, depth + 1);
		free(below);
		free(names[i]);
	}
	if (n >= 0)
		free(names);
	return bad;
}

static int replay_path(const char *path, bool may_lack, unsigned depth)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), bad = 1;
	struct stat st;

	if (fd < 0 && errno == ENOENT && may_lack)
		return 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		fprintf(stderr, "%s: %s: %s\n", run.self, path, strerror(errno));
	else if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH)
		bad = replay_dir(path, depth);
	else if (S_ISREG(st.st_mode) && st.st_size <= MAX_FILE)
		bad = replay_file(path, fd, (size_t)st.st_size);
	else
		fprintf(stderr, "%s: %s: not a file of at most 64 MiB\n", run.self, path);
	if (fd >= 0)
		close(fd);
	return bad;
}

static int parse_number(const char *word, unsigned long long *out)
{
	char *end;

	errno = 0;
	*out = word ? strtoull(word, &end, 10) : 0;
	return word && !errno && *word && !*end ? 0 : -1;
}

int main(int argc, char **argv)
{
	static const int deaths[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP };
	int bad = 0;

	run.self = argv[0];
	signal(SIGABRT, on_death);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(keep_input);
	else
		for (size_t i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++)
			signal(deaths[i], on_death);
	give_input("(empty)", (const uint8_t *)"", 0, 0);
	for (int i = 1; i < argc && !bad; i++) {
		unsigned long long v;

		if (strcmp(argv[i], "--verbose") == 0) {
			run.verbose = true;
		} else if (strcmp(argv[i], "--if-present") == 0 && i + 1 < argc) {
			bad = replay_path(argv[++i], true, 0);
		} else if (strcmp(argv[i], "--seed") == 0 &&
			   parse_number(argv[i + 1], &v) == 0) {
			run.seed = v;
			i++;
		} else if (strcmp(argv[i], "--mutate") == 0 &&
			   parse_number(argv[i + 1], &v) == 0) {
			run.mutate = (unsigned)v;
			i++;
		} else {
			bad = replay_path(argv[i], false, 0);
		}
	}
	printf("%s: %u inputs\n", run.self, run.inputs);
	return bad;
}
