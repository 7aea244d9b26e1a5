/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client: what a reader of a file system does, with the clock inside.
 *
 *   client [-n REPS] [-b KIB] [-d] [-t THREADS] [-c COUNT] [-p PID] [-e FILE] VERB PATH
 *
 *   seq FILE    read it once from start to end, in blocks of -b, by -t threads (each its part)
 *   rand FILE   -c reads of 4 KiB at random places
 *   list DIR    getdents64 to the end
 *   stat DIR    fstatat of every name
 *   open DIR    open, read 4 KiB, close the first -c names (0: all)
 *
 * -d opens with O_DIRECT; -e drops the cached pages of FILE before each repetition; -p adds the
 * CPU time of that process, the daemon. One JSON line a repetition. Buffers are touched and
 * names are collected before the clock starts.
 */
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 16, SMALL = 4096 };

static struct {
	unsigned reps, threads;
	unsigned long block, count;
	bool direct;
	const char *evict, *path;
	clockid_t daemon;
	bool has_daemon;
} opt = { .reps = 1, .threads = 1, .block = 1 << 20, .count = 0 };

struct part {
	pthread_t thread;
	char *buf;
	uint64_t from, to, done;
};
static struct part parts[MAX_THREADS];

static struct {
	char **name;
	size_t n, room;
} names;

/* What a verb did: operations, and bytes when bytes are the point. */
struct work {
	uint64_t ops, bytes;
};

static double read_seconds(clockid_t clock)
{
	struct timespec t;

	if (clock_gettime(clock, &t) < 0)
		err(1, "clock_gettime");
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *map_touched(size_t n)
{
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	madvise(p, n, MADV_HUGEPAGE);
	memset(p, 1, n);
	return p;
}

static int open_data(void)
{
	int fd = open(opt.path, O_RDONLY | O_CLOEXEC | (opt.direct ? O_DIRECT : 0));

	if (fd < 0)
		err(1, "%s", opt.path);
	return fd;
}

static uint64_t size_of(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		err(1, "%s", opt.path);
	return (uint64_t)st.st_size;
}

static void *seq_part(void *arg)
{
	struct part *p = arg;
	int fd = open_data();

	p->done = 0;
	for (uint64_t at = p->from; at < p->to;) {
		ssize_t n = pread(fd, p->buf, opt.block, (off_t)at);

		if (n <= 0)
			err(1, "%s at %llu", opt.path, (unsigned long long)at);
		at += (uint64_t)n;
		p->done += (uint64_t)n;
	}
	close(fd);
	return NULL;
}

static struct work read_in_order(void)
{
	struct work w = { 0 };

	for (unsigned i = 1; i < opt.threads; i++)
		if (pthread_create(&parts[i].thread, NULL, seq_part, &parts[i]))
			errx(1, "no thread");
	seq_part(&parts[0]);
	for (unsigned i = 0; i < opt.threads; i++) {
		if (i)
			pthread_join(parts[i].thread, NULL);
		w.bytes += parts[i].done;
	}
	w.ops = w.bytes / opt.block;
	return w;
}

static void seq_prepare(void)
{
	int fd = open_data();
	uint64_t size = size_of(fd), share = size / opt.threads / opt.block * opt.block;

	close(fd);
	for (unsigned i = 0; i < opt.threads; i++) {
		parts[i].buf = map_touched(opt.block);
		parts[i].from = i * share;
		parts[i].to = i + 1 < opt.threads ? (i + 1) * share : size;
	}
}

static void rand_prepare(void)
{
	parts[0].buf = map_touched(2 << 20);
}

static struct work rand_reads(void)
{
	int fd = open_data();
	uint64_t pages = size_of(fd) / SMALL, state = 0x2545f4914f6cdd1dull;

	for (unsigned long i = 0; i < opt.count; i++) {
		uint64_t at;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		at = (state >> 24) % pages * SMALL;
		if (pread(fd, parts[0].buf, SMALL, (off_t)at) != SMALL)
			err(1, "%s at %llu", opt.path, (unsigned long long)at);
	}
	close(fd);
	return (struct work){ .ops = opt.count };
}

struct dirent64_raw {
	uint64_t ino;
	int64_t off;
	uint16_t len;
	uint8_t type;
	char name[];
};

static void keep_name(const char *name)
{
	if (names.n == names.room) {
		names.room = names.room ? names.room * 2 : 1024;
		names.name = realloc(names.name, names.room * sizeof(*names.name));
	}
	if (!names.name || !(names.name[names.n] = strdup(name)))
		err(1, "names");
	names.n++;
}

static int open_dir(void)
{
	int fd = open(opt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		err(1, "%s", opt.path);
	return fd;
}

static uint64_t each_name(void (*fn)(const char *name))
{
	static _Alignas(8) char buf[1 << 16];
	uint64_t count = 0;
	int fd = open_dir();
	long n;

	while ((n = syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0) {
		for (char *at = buf; at < buf + n;) {
			const struct dirent64_raw *d = (const void *)at;

			at += d->len;
			if (!strcmp(d->name, ".") || !strcmp(d->name, ".."))
				continue;
			count++;
			if (fn)
				fn(d->name);
		}
	}
	if (n < 0)
		err(1, "%s", opt.path);
	close(fd);
	return count;
}

static void names_prepare(void)
{
	each_name(keep_name);
	if (!opt.count || opt.count > names.n)
		opt.count = names.n;
}

static struct work list_names(void)
{
	return (struct work){ .ops = each_name(NULL) };
}

static struct work stat_names(void)
{
	int dir = open_dir();
	struct stat st;

	for (size_t i = 0; i < opt.count; i++)
		if (fstatat(dir, names.name[i], &st, 0) < 0)
			err(1, "%s", names.name[i]);
	close(dir);
	return (struct work){ .ops = opt.count };
}

static struct work open_names(void)
{
	char buf[SMALL];
	int dir = open_dir();

	for (size_t i = 0; i < opt.count; i++) {
		int fd = openat(dir, names.name[i], O_RDONLY | O_CLOEXEC);

		if (fd < 0 || read(fd, buf, sizeof(buf)) <= 0)
			err(1, "%s", names.name[i]);
		close(fd);
	}
	close(dir);
	return (struct work){ .ops = opt.count };
}

static const struct {
	const char *name;
	void (*prepare)(void);
	struct work (*run)(void);
} verbs[] = {
	{ "seq", seq_prepare, read_in_order }, { "rand", rand_prepare, rand_reads },
	{ "list", NULL, list_names },          { "stat", names_prepare, stat_names },
	{ "open", names_prepare, open_names },
};

static void evict_file(void)
{
	int fd = open(opt.evict, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		err(1, "%s", opt.evict);
	close(fd);
}

static void measure_run(unsigned rep, struct work (*run)(void))
{
	double wall, cpu, daemon = 0;
	struct work w;

	if (opt.evict)
		evict_file();
	if (opt.has_daemon)
		daemon = read_seconds(opt.daemon);
	cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
	wall = read_seconds(CLOCK_MONOTONIC);
	w = run();
	wall = read_seconds(CLOCK_MONOTONIC) - wall;
	cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	if (opt.has_daemon)
		daemon = read_seconds(opt.daemon) - daemon;
	printf("{\"rep\": %u, \"wall\": %.7f, \"client_cpu\": %.7f, \"daemon_cpu\": %.7f, "
	       "\"cpu\": %.7f, \"ops\": %llu, \"bytes\": %llu}\n",
	       rep, wall, cpu, daemon, cpu + daemon, (unsigned long long)w.ops,
	       (unsigned long long)w.bytes);
}

static unsigned long parse_number(const char *s, unsigned long most)
{
	char *end;
	unsigned long n = strtoul(s, &end, 10);

	if (end == s || *end || n > most)
		errx(2, "not a number up to %lu: %s", most, s);
	return n;
}

int main(int argc, char **argv)
{
	int o;

	while ((o = getopt(argc, argv, "n:b:dt:c:p:e:")) >= 0) {
		switch (o) {
		case 'n':
			opt.reps = (unsigned)parse_number(optarg, 1000000);
			break;
		case 'b':
			opt.block = parse_number(optarg, 1 << 20) << 10;
			break;
		case 'd':
			opt.direct = true;
			break;
		case 't':
			opt.threads = (unsigned)parse_number(optarg, MAX_THREADS);
			break;
		case 'c':
			opt.count = parse_number(optarg, 1000000000);
			break;
		case 'p':
			opt.has_daemon = true;
			if (clock_getcpuclockid((pid_t)parse_number(optarg, 1 << 30),
						&opt.daemon))
				errx(1, "no process %s", optarg);
			break;
		case 'e':
			opt.evict = optarg;
			break;
		default:
			return 2;
		}
	}
	if (argc - optind != 2 || !opt.threads || !opt.block)
		errx(2, "usage: client [options] seq|rand|list|stat|open PATH");
	opt.path = argv[optind + 1];
	for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
		if (strcmp(verbs[v].name, argv[optind]))
			continue;
		if (verbs[v].prepare)
			verbs[v].prepare();
		for (unsigned r = 0; r < opt.reps; r++)
			measure_run(r, verbs[v].run);
		return fflush(stdout) == 0 ? 0 : 1;
	}
	errx(2, "no verb %s", argv[optind]);
}
