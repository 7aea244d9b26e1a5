/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is out of reach, and streams. */
#include "tests/load/fake/fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- the kernel, block by block ---- */

static __thread unsigned block_now, thread_now;
#define KERNEL static
#define DEVICE static inline
#define BLOCK block_now
#define THREAD thread_now
#include "tools/load/memory/scatter.cu"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t recorded = PTHREAD_COND_INITIALIZER; /* an event was, or a stream ends */
unsigned fake_broken;

/* ---- memory ---- */

enum { MAX_REGIONS = 4096 };

/* Behind the bytes of a file: the processes that have it mapped. */
struct users {
	_Atomic int pid[64];
};

static struct region {
	char *p;
	size_t n;
	int device; /* -1: pinned memory of the host */
	int fd;     /* of what other processes may map; 0: none */
	bool foreign;
	struct users *users; /* of the file; NULL: it is not one */
} regions[MAX_REGIONS];
static size_t nregions;

static struct region *find_region(const void *p)
{
	for (size_t i = 0; i < nregions; i++)
		if ((const char *)p >= regions[i].p &&
		    (const char *)p < regions[i].p + regions[i].n)
			return &regions[i];
	return NULL;
}

unsigned fake_add(void *p, size_t n, int device)
{
	unsigned code = 0;

	pthread_mutex_lock(&lock);
	if (device < 0 && find_region(p))
		code = LOAD_CUDA_ALREADY_REGISTERED;
	else if (nregions == MAX_REGIONS)
		code = LOAD_CUDA_OUT_OF_MEMORY;
	else
		regions[nregions++] = (struct region){ .p = p, .n = n, .device = device };
	pthread_mutex_unlock(&lock);
	return code;
}

static void allow_devices(int permissions)
{
	for (size_t i = 0; i < nregions; i++)
		if (regions[i].device >= 0 && regions[i].device < MANAGED)
			mprotect(regions[i].p, regions[i].n, permissions);
}

/* ---- what streams use ---- */

struct CUstream_st {
	struct CUstream_st *next;
	pthread_t thread;
	struct fake_operation *now, *first, **last;
	unsigned number;
	bool hangs, ends;
	pthread_cond_t given; /* an operation, or the end */
};

static const char *const kinds[] = { "in",     "out",    "box",  "set",
				     "launch", "record", "wait", "nccl" };
static struct CUstream_st *streams;
static unsigned nstreams;

static bool is_in(const struct region *r, const void *p)
{
	return (const char *)p >= r->p && (const char *)p < r->p + r->n;
}

static bool uses_region(const struct fake_operation *o, bool begun, const struct region *r)
{
	bool found = o->kind == LAUNCH && is_in(r, o->jobs);

	if (o->kind == STEPS)
		return o->uses(o->arg, r->p, r->n);
	if (o->kind <= SET)
		return is_in(r, o->box.src_host) || is_in(r, o->box.dst_host) ||
		       is_in(r, (void *)(uintptr_t)o->box.src_device) ||
		       is_in(r, (void *)(uintptr_t)o->box.dst_device);
	if (o->kind != LAUNCH || !begun)
		return found;
	allow_devices(PROT_READ | PROT_WRITE);
	for (uint32_t i = 0; i < o->n && !found; i++)
		found = is_in(r, (void *)(uintptr_t)o->jobs[i].src) ||
			is_in(r, (void *)(uintptr_t)(o->jobs[i].dst + o->jobs[i].at));
	allow_devices(PROT_NONE);
	return found;
}

/* Of memory that is freed, unpinned, or unmapped. */
static void forbid_pending(const struct region *r)
{
	for (struct CUstream_st *s = streams; s; s = s->next) {
		const struct fake_operation *o =
			s->now && uses_region(s->now, true, r) ? s->now : NULL;

		for (const struct fake_operation *f = s->first; f && !o; f = f->next)
			o = uses_region(f, false, r) ? f : NULL;
		if (!o)
			continue;
		fprintf(stderr, "memory is freed that an operation uses: %s, device %d\n",
			kinds[o->kind], r->device);
		abort();
	}
}

/* Of memory that is freed. */
static void forbid_use(struct region *r)
{
	forbid_pending(r);
	for (size_t i = 0; r->users && i < sizeof(r->users->pid) / sizeof(int); i++) {
		if (!r->users->pid[i] || kill(r->users->pid[i], 0) < 0)
			continue;
		fprintf(stderr, "cuMemFree: process %d has it mapped\n", r->users->pid[i]);
		abort();
	}
	if (r->users)
		munmap(r->users, sizeof(*r->users));
	if (r->fd)
		close(r->fd);
}

unsigned fake_forget(void *p, bool device)
{
	struct region *r;
	unsigned code = INVALID;

	pthread_mutex_lock(&lock);
	r = find_region(p);
	if (r && r->p == p && (r->device >= 0) == device && !r->foreign) {
		forbid_use(r);
		if (device)
			munmap(r->p, r->n);
		*r = regions[--nregions];
		code = 0;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

/* ---- memory that processes share ---- */

struct ticket {
	int pid, fd, device, zero;
	size_t n, at; /* bytes; where its users are */
};

static struct users *users_of(int fd, size_t at)
{
	void *p = mmap(NULL, sizeof(struct users), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		       (off_t)at);

	return p == MAP_FAILED ? NULL : p;
}

/* Make a region a file. */
static bool become_file(struct region *r, size_t at)
{
	int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
	bool fine = fd > 0 && ftruncate(fd, (off_t)(at + sizeof(struct users))) == 0;

	mprotect(r->p, r->n, PROT_READ);
	fine = fine && pwrite(fd, r->p, r->n, 0) == (ssize_t)r->n &&
	       mmap(r->p, r->n, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
	r->users = fine ? users_of(fd, at) : NULL;
	r->fd = fd;
	return r->users;
}

unsigned fake_share(void *p, struct load_cuda_ipc_handle *handle)
{
	unsigned code = INVALID;
	struct region *r;

	pthread_mutex_lock(&lock);
	r = find_region(p);
	if (r && r->p == p && r->device >= 0 && r->device < MANAGED && !r->foreign) {
		size_t at = (r->n + 4095) / 4096 * 4096;

		if (r->users || become_file(r, at)) {
			struct ticket t = { getpid(), r->fd, r->device, 0, r->n, at };

			memcpy(handle, &t, sizeof(t));
			code = 0;
		}
	}
	pthread_mutex_unlock(&lock);
	return code;
}

/* Is @old among the users? It becomes @new. */
static bool replace_user(struct users *u, int old, int new)
{
	for (size_t i = 0; i < sizeof(u->pid) / sizeof(int); i++) {
		int was = old;

		if (atomic_compare_exchange_strong(&u->pid[i], &was, new))
			return true;
	}
	return false;
}

size_t fake_size(const void *p)
{
	struct region *r;
	size_t n;

	pthread_mutex_lock(&lock);
	r = find_region(p);
	n = r && r->p == p ? r->n : 0;
	pthread_mutex_unlock(&lock);
	return n;
}

unsigned fake_map(const struct load_cuda_ipc_handle *handle, int device, void **out)
{
	struct ticket t;
	struct users *u = NULL;
	char path[64];
	void *p = MAP_FAILED;
	unsigned code = INVALID;
	int fd;

	memcpy(&t, handle, sizeof(t));
	if (t.pid == getpid())
		return INVALID_CONTEXT;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", t.pid, t.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0) {
		u = users_of(fd, t.at);
		p = mmap(NULL, t.n, PROT_NONE, MAP_SHARED, fd, 0);
		close(fd);
	}
	pthread_mutex_lock(&lock);
	if (u && p != MAP_FAILED && nregions < MAX_REGIONS && replace_user(u, 0, getpid())) {
		regions[nregions++] = (struct region){
			.p = p, .n = t.n, .device = device, .foreign = true, .users = u
		};
		*out = p;
		code = 0;
	}
	pthread_mutex_unlock(&lock);
	if (code == 0)
		fake_tell("map %zu of %d\n", t.n, t.device);
	return code;
}

unsigned fake_unmap(void *p)
{
	unsigned code = INVALID;
	struct region *r;

	pthread_mutex_lock(&lock);
	r = find_region(p);
	if (r && r->p == p && r->foreign) {
		forbid_pending(r);
		replace_user(r->users, getpid(), 0);
		munmap(r->users, sizeof(*r->users));
		munmap(r->p, r->n);
		*r = regions[--nregions];
		fake_tell("unmap\n");
		code = 0;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

int fake_device_of(const void *p)
{
	struct region *r;
	int device;

	pthread_mutex_lock(&lock);
	r = find_region(p);
	device = r ? r->device : -2;
	pthread_mutex_unlock(&lock);
	return device;
}

/* ---- streams ---- */

static size_t bytes_of(const struct fake_operation *o)
{
	return o->box.width * (o->box.height ? o->box.height : 1) *
	       (o->box.depth ? o->box.depth : 1);
}

static void copy_box(const struct fake_operation *o)
{
	const struct load_cuda_copy *b = &o->box;
	const char *src = b->src_type == LOAD_CUDA_HOST
				  ? b->src_host
				  : (const char *)(uintptr_t)b->src_device;
	char *dst =
		b->dst_type == LOAD_CUDA_HOST ? b->dst_host : (char *)(uintptr_t)b->dst_device;

	for (size_t z = 0; z < b->depth; z++)
		for (size_t y = 0; y < b->height; y++)
			memcpy(dst + (z * b->dst_height + y) * b->dst_pitch,
			       src + (z * b->src_height + y) * b->src_pitch, b->width);
}

/* Units lie at multiples of themselves, as a GPU wants them. */
static bool is_aligned(const struct load_job *j)
{
	uint64_t all = j->src | (j->dst + j->at);

	for (uint32_t k = 0; k < j->ndim; k++)
		all |= j->src_stride[k] | j->dst_stride[k];
	return j->elements || all % j->unit == 0;
}

static void launch_kernel(const struct fake_operation *o)
{
	for (uint32_t i = 0; i < o->n; i++)
		if (!is_aligned(&o->jobs[i]) && !fake_broken)
			fake_broken = MISALIGNED;
	if (fake_broken)
		return;
	for (block_now = 0; block_now < o->blocks; block_now++)
		for (thread_now = 0; thread_now < LOAD_SCATTER_THREADS; thread_now++)
			dcpload_scatter(o->jobs, o->n);
}

/*
 * As allow_devices(), for the regions that a copy or a fill touches: the pages of all would take
 * most of the time.
 */
static void allow_touched(const struct fake_operation *o, int permissions)
{
	for (size_t i = 0; i < nregions; i++)
		if (regions[i].device >= 0 && regions[i].device < MANAGED &&
		    (o->kind == LAUNCH || uses_region(o, false, &regions[i])))
			mprotect(regions[i].p, regions[i].n, permissions);
}

static void perform_operation(const struct fake_operation *o)
{
	allow_touched(o, PROT_READ | PROT_WRITE);
	if (o->kind == SET)
		memset((void *)(uintptr_t)o->box.dst_device, o->value, o->box.width);
	else if (o->kind == LAUNCH)
		launch_kernel(o);
	else
		copy_box(o);
	allow_touched(o, PROT_NONE);
}

/* Not under the lock between two steps: other streams go on. Ever more seldom: some never end. */
static void take_steps(struct CUstream_st *s, const struct fake_operation *o)
{
	struct timespec moment = { .tv_nsec = 200000 };
	bool done = false;

	while (!done && !s->ends) {
		allow_devices(PROT_READ | PROT_WRITE);
		done = o->step(o->arg);
		allow_devices(PROT_NONE);
		pthread_mutex_unlock(&lock);
		nanosleep(&moment, NULL);
		if (moment.tv_nsec < 5000000)
			moment.tv_nsec += moment.tv_nsec / 8;
		pthread_mutex_lock(&lock);
	}
}

/* Under the lock. false: it never ends. */
static bool run_operation(struct CUstream_st *s, const struct fake_operation *o)
{
	int code = o->kind == RECORD || o->kind == WAIT ? 0 : fake_fails("run");

	code = code ? code : fake_fails(kinds[o->kind]);
	if (code == HANGS)
		return false;
	if (code)
		fake_broken = (unsigned)code;
	if (o->kind == RECORD) {
		if (o->event->done < o->time)
			o->event->done = o->time;
		pthread_cond_broadcast(&recorded);
	} else if (o->kind == WAIT) {
		while (o->event->done < o->time && !s->ends)
			pthread_cond_wait(&recorded, &lock);
	} else if (o->kind == STEPS) {
		take_steps(s, o);
	} else if (!fake_broken) {
		perform_operation(o);
	}
	fake_tell("- %u %s %zu\n", s->number, kinds[o->kind], bytes_of(o));
	return true;
}

static void take_time(const struct fake_operation *o)
{
	bool large = (o->kind == COPY_IN || o->kind == COPY_BOX) && bytes_of(o) > 64 << 10;
	int ms = large               ? fake_number("FAKE_CUDA_SLOW", 0)
		 : o->kind == LAUNCH ? fake_number("FAKE_CUDA_SLOW_KERNEL", 0)
				     : 0;
	const struct timespec moment = { .tv_nsec = 50000 + ms * 1000000L };

	nanosleep(&moment, NULL);
}

static void *serve_stream(void *arg)
{
	struct CUstream_st *s = arg;

	pthread_mutex_lock(&lock);
	for (;;) {
		struct fake_operation *o;

		while (!s->first && !s->ends)
			pthread_cond_wait(&s->given, &lock);
		o = s->first;
		if (!o)
			break;
		s->first = o->next;
		if (!s->first)
			s->last = &s->first;
		s->now = o;
		pthread_mutex_unlock(&lock);
		take_time(o);
		pthread_mutex_lock(&lock);
		if (!run_operation(s, o)) { /* nor does anything behind it */
			s->hangs = true;
			while (!s->ends)
				pthread_cond_wait(&s->given, &lock);
			s->first = NULL;
			s->last = &s->first;
		}
		s->now = NULL;
		free(o->arg);
		free(o);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/*
 * The default stream, which has a number in place of a handle: the legacy one, or that of a thread.
 */
static struct CUstream_st *by_default;
static void make_default(void)
{
	fake_stream(&by_default);
}

unsigned fake_queue(struct CUstream_st *s, struct fake_operation o)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct fake_operation *own;

	if ((uintptr_t)s == 1 || (uintptr_t)s == 2) {
		pthread_once(&once, make_default);
		s = by_default;
	}
	if (!s)
		return INVALID; /* the stream of a whole device */
	own = malloc(sizeof(*own));
	if (!own)
		return LOAD_CUDA_OUT_OF_MEMORY;
	*own = o;
	own->next = NULL;
	pthread_mutex_lock(&lock);
	fake_tell("+ %u %s %zu%s\n", s->number, kinds[o.kind], bytes_of(&o),
		  o.kind <= COPY_BOX && o.box.src_type == LOAD_CUDA_HOST &&
				  !find_region(o.box.src_host)
			  ? " pageable"
			  : "");
	*s->last = own;
	s->last = &own->next;
	pthread_cond_signal(&s->given);
	pthread_mutex_unlock(&lock);
	return 0;
}

unsigned fake_queue_steps(struct CUstream_st *s, bool (*step)(void *),
			  bool (*of)(const void *, const char *, size_t), void *arg)
{
	return fake_queue(s, (struct fake_operation){
				     .kind = STEPS, .step = step, .uses = of, .arg = arg });
}

unsigned fake_stream(struct CUstream_st **out)
{
	struct CUstream_st *s = calloc(1, sizeof(*s));

	if (!s)
		return LOAD_CUDA_OUT_OF_MEMORY;
	s->last = &s->first;
	pthread_cond_init(&s->given, NULL);
	pthread_mutex_lock(&lock);
	s->number = ++nstreams;
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&lock);
	*out = s;
	return pthread_create(&s->thread, NULL, serve_stream, s) ? LOAD_CUDA_OUT_OF_MEMORY : 0;
}

void fake_stream_end(struct CUstream_st *s)
{
	pthread_mutex_lock(&lock);
	s->ends = true;
	pthread_cond_signal(&s->given);
	pthread_cond_broadcast(&recorded);
	pthread_mutex_unlock(&lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&lock);
	for (struct CUstream_st **p = &streams; *p; p = &(*p)->next)
		if (*p == s) {
			*p = s->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&s->given);
	free(s);
}

bool fake_stream_is_idle(struct CUstream_st *s)
{
	bool idle;

	pthread_mutex_lock(&lock);
	idle = !s->first && !s->now;
	pthread_mutex_unlock(&lock);
	return idle;
}

bool fake_hangs(void)
{
	bool hangs = false;

	pthread_mutex_lock(&lock);
	for (struct CUstream_st *s = streams; s; s = s->next)
		hangs |= s->hangs;
	pthread_mutex_unlock(&lock);
	return hangs;
}

uint64_t fake_record(struct CUevent_st *event)
{
	uint64_t time;

	pthread_mutex_lock(&lock);
	time = ++event->recorded;
	pthread_mutex_unlock(&lock);
	return time;
}

bool fake_is_done(struct CUevent_st *event)
{
	bool done;

	pthread_mutex_lock(&lock);
	done = event->done >= event->recorded;
	pthread_mutex_unlock(&lock);
	return done;
}

void fake_write(void *dst, const void *src, size_t n)
{
	pthread_mutex_lock(&lock);
	allow_devices(PROT_READ | PROT_WRITE);
	memcpy(dst, src, n);
	allow_devices(PROT_NONE);
	fake_tell("file %zu\n", n);
	pthread_mutex_unlock(&lock);
}
