/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tools/load/memory/cufile_abi.h"

#define LIBRARY "libcufile.so.0"

enum {
	MOST_FILES = 1024, /* limit of files that are kept open */
	MOST_BATCH = 128,  /* reads of a batch; also the default of cuFile */
	/* most unused batches that are kept; no more threads than that read */
	IDLE = 16,
	LOOK_NS = 100000000, /* between looks at the clock */
};

struct file {
	void *handle;
	int fd;
	enum { NEW, GOOD, REFUSED } state;
	unsigned code; /* why cuFile refused the file */
};

struct load_gds {
	struct load_cufile_calls call;
	struct load_device *d;
	void *base;
	uint64_t bytes;
	bool opened, registered;
	/* a batch may still read, so all memory that it uses is kept until the process ends */
	_Atomic bool lost;
	uint32_t timeout_ms;
	char how[160];        /* how cuFile reads */
	pthread_mutex_t lock; /* guards the members below */
	struct file file[MOST_FILES];
	uint32_t batch; /* reads of a batch; 0: there are no batches */
	void *idle[IDLE];
	uint32_t nidle;
	char alone[80];   /* why a read was made without a batch; "": no read was */
	uint64_t refused; /* reads that the host made */
	char first[80];   /* why the first of them was refused */
	char why[400];
};

/* Is nvidia-fs loaded? Without its device files, as in a container that was not given them, opening
 * cuFile would close descriptor 0. */
static int find_driver(bool *loaded, char *why, size_t size)
{
	dcp_auto_fd int modules = open("/proc/modules", O_RDONLY | O_CLOEXEC);
	char byte;

	/* cuFile reads this file to look for modules; if it cannot read it, it tries again for
	 * ever. */
	if (modules < 0 || read(modules, &byte, 1) < 0) {
		snprintf(why, size, "cuFile needs /proc/modules, which cannot be read: %s",
			 strerror(errno));
		return -ENODEV;
	}
	*loaded = access("/proc/driver/nvidia-fs", F_OK) == 0;
	if (!*loaded || access("/dev/nvidia-fs0", F_OK) == 0)
		return 0;
	snprintf(why, size, "nvidia-fs is loaded, but /dev/nvidia-fs0 is not here");
	return -ENODEV;
}

/* Describe how files are read: by what the driver reports, or else by what is installed. */
static void describe_driver(struct load_gds *g, bool loaded)
{
	struct load_cufile_properties has = { .major = loaded,
					      .control = 1u << LOAD_CUFILE_COMPAT };

	if (g->call.cuFileDriverGetProperties &&
	    g->call.cuFileDriverGetProperties(&has).code == LOAD_CUFILE_SUCCESS)
		g->batch = DCP_MIN(g->batch, DCP_MAX(has.batch, 1u));
	if (!has.major)
		snprintf(g->how, sizeof(g->how),
			 "cuFile in its compatibility mode, by way of the host: nvidia-fs is "
			 "not loaded");
	else
		snprintf(g->how, sizeof(g->how), "cuFile with nvidia-fs%s",
			 has.control & 1u << LOAD_CUFILE_COMPAT
				 ? ", or in its compatibility mode on a file system that "
				   "nvidia-fs does not know"
				 : "");
}

static int open_driver(struct load_gds *g, bool loaded, char *why, size_t size)
{
	struct load_cufile_error e;
	int rc = g->d->kind->alloc(g->d, g->bytes, &g->base);

	if (rc < 0) {
		snprintf(why, size, "%s", g->d->said);
		return rc;
	}
	rc = g->d->kind->enter(g->d);
	if (rc < 0)
		return rc;
	e = g->call.cuFileDriverOpen();
	g->opened = e.code == LOAD_CUFILE_SUCCESS;
	if (g->opened) {
		describe_driver(g, loaded);
		g->registered = g->call.cuFileBufRegister(g->base, g->bytes, 0).code ==
				LOAD_CUFILE_SUCCESS;
	} else {
		snprintf(why, size, "cuFileDriverOpen: error %u, of CUDA %u", e.code, e.cuda);
		rc = -ENODEV;
	}
	g->d->kind->leave(g->d);
	return rc;
}

/* Open the library and find its functions; those for batches only if it has all of them. *loaded:
 * nvidia-fs is loaded. */
static int open_library(struct load_gds *g, bool *loaded, char *why, size_t size)
{
#define NAME(result, name, arguments) #name,
	static const char *const names[] = { LOAD_CUFILE_CALLS(NAME) }, *const more[] = {
		LOAD_CUFILE_MORE(NAME)
	};
#undef NAME
	void **at = (void **)&g->call;
	int rc = dcp_library_open(LIBRARY, names, DCP_LEN(names), at, why, size);

	_Static_assert(sizeof(g->call) == sizeof(names) + sizeof(more), "pointers alone");
	if (rc < 0)
		return rc;
	g->batch = MOST_BATCH;
	if (dcp_library_open(LIBRARY, more, DCP_LEN(more) - 1, at + DCP_LEN(names), g->alone,
			     sizeof(g->alone)) < 0)
		g->batch = 0;
	dcp_library_open(LIBRARY, &more[DCP_LEN(more) - 1], 1,
			 (void **)&g->call.cuFileDriverGetProperties, why, size);
	return find_driver(loaded, why, size);
}

int load_gds_probe(char *found, size_t size)
{
	struct load_gds *g = calloc(1, sizeof(*g));
	bool loaded;
	int rc = g ? open_library(g, &loaded, found, size) : -ENOMEM;

	free(g);
	if (rc == 0)
		snprintf(found, size, LIBRARY "%s",
			 loaded ? " and nvidia-fs"
				: ", in its compatibility mode: nvidia-fs is not loaded");
	return rc;
}

int load_gds_open(struct load_device *d, uint64_t n, uint32_t timeout_ms, struct load_gds **out,
		  char *why, size_t size)
{
	struct load_gds *g = calloc(1, sizeof(*g));
	bool loaded = false;
	int rc;

	if (!g)
		return -ENOMEM;
	pthread_mutex_init(&g->lock, NULL);
	g->d = d;
	g->bytes = n;
	g->timeout_ms = timeout_ms;
	snprintf(why, size, "out of memory");
	rc = open_library(g, &loaded, why, size);
	if (rc == 0)
		rc = open_driver(g, loaded, why, size);
	if (rc < 0) {
		load_gds_close(g, false);
		return rc;
	}
	*out = g;
	return 0;
}

void load_gds_close(struct load_gds *g, bool keep)
{
	if (!g)
		return;
	if (g->lost || keep)
		load_device_keep(g->d,
				 "a batch of cuFile did not end: its memory is kept until "
				 "the process ends");
	g->lost |= keep;
	if (g->opened && !g->lost && g->d->kind->enter(g->d) == 0) {
		for (size_t i = 0; i < MOST_FILES; i++) {
			if (g->file[i].state != GOOD)
				continue;
			g->call.cuFileHandleDeregister(g->file[i].handle);
			close(g->file[i].fd);
		}
		while (g->nidle)
			g->call.cuFileBatchIODestroy(g->idle[--g->nidle]);
		if (g->registered)
			g->call.cuFileBufDeregister(g->base);
		g->call.cuFileDriverClose();
		g->d->kind->leave(g->d);
	}
	if (g->base && !g->lost)
		g->d->kind->free(g->d, g->base, g->bytes);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

char *load_gds_memory(const struct load_gds *g)
{
	return g->base;
}

/* Count @n reads that the host has to make. */
static void count_refused(struct load_gds *g, size_t n, const char *call, long code)
{
	pthread_mutex_lock(&g->lock);
	if (g->refused == 0)
		snprintf(g->first, sizeof(g->first), "%s: %ld", call, code);
	g->refused += n;
	pthread_mutex_unlock(&g->lock);
}

/* Record that reads are made without a batch; @all: from now on. */
static void leave_batch(struct load_gds *g, bool all, const char *call, long code)
{
	pthread_mutex_lock(&g->lock);
	if (!g->alone[0])
		snprintf(g->alone, sizeof(g->alone), "%s: %ld", call, code);
	if (all)
		g->batch = 0;
	pthread_mutex_unlock(&g->lock);
}

/* The handle of a file, registered when it is first read; NULL: it is refused. */
static void *handle_of(struct load_gds *g, uint32_t number, int fd, size_t n)
{
	struct file *f = number < MOST_FILES ? &g->file[number] : NULL;
	struct load_cufile_descr descr = { .type = LOAD_CUFILE_FD };
	struct load_cufile_error e = { 0 };
	void *handle = NULL;
	unsigned code;

	if (!f) {
		count_refused(g, n, "more open files than the limit", MOST_FILES);
		return NULL;
	}
	pthread_mutex_lock(&g->lock);
	if (f->state == NEW) {
		f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		descr.handle.fd = f->fd;
		e = f->fd < 0 ? (struct load_cufile_error){ (unsigned)errno, 0 }
			      : g->call.cuFileHandleRegister(&f->handle, &descr);
		f->state = e.code == LOAD_CUFILE_SUCCESS ? GOOD : REFUSED;
		f->code = e.code;
		if (f->state == REFUSED && f->fd >= 0)
			close(f->fd);
	}
	if (f->state == GOOD)
		handle = f->handle;
	code = f->code;
	pthread_mutex_unlock(&g->lock);
	if (!handle)
		count_refused(g, n, "cuFileHandleRegister", code);
	return handle;
}

/* ---- batches ---- */

/* A batch that no thread uses, for *@most reads; NULL: none is available. */
static void *take_batch(struct load_gds *g, uint32_t *most)
{
	struct load_cufile_error e = { 0 };
	void *id = NULL;

	pthread_mutex_lock(&g->lock);
	*most = g->batch;
	if (g->batch && g->nidle)
		id = g->idle[--g->nidle];
	pthread_mutex_unlock(&g->lock);
	if (id || !*most)
		return id;
	e = g->call.cuFileBatchIOSetUp(&id, *most);
	if (e.code == LOAD_CUFILE_SUCCESS)
		return id;
	leave_batch(g, true, "cuFileBatchIOSetUp", e.code);
	return NULL;
}

static void give_batch(struct load_gds *g, void *id)
{
	pthread_mutex_lock(&g->lock);
	if (g->nidle < IDLE) {
		g->idle[g->nidle++] = id;
		id = NULL;
	}
	pthread_mutex_unlock(&g->lock);
	if (id)
		g->call.cuFileBatchIODestroy(id);
}

/* Wait for the @n reads of a submitted batch: at most half the job's timeout, so that this rank can
 * report before the other ranks give up. */
static int await_batch(struct load_gds *g, void *id, struct load_gds_read *r, uint32_t n,
		       char *why, size_t size)
{
	int64_t until = dcp_now_ns(CLOCK_MONOTONIC) + g->timeout_ms / 2 * DCP_NS_PER_MS;
	struct load_cufile_event event[MOST_BATCH];
	bool ended[MOST_BATCH] = { false };

	for (uint32_t left = n, got; left;) {
		struct timespec look = { .tv_nsec = LOOK_NS };
		struct load_cufile_error e;

		got = left;
		e = g->call.cuFileBatchIOGetStatus(id, 1, &got, event, &look);
		if (e.code != LOAD_CUFILE_SUCCESS) {
			snprintf(why, size, "cuFileBatchIOGetStatus: error %u", e.code);
			return -EREMOTEIO;
		}
		for (uint32_t i = 0; i < DCP_MIN(got, n); i++) {
			size_t k = (size_t)(uintptr_t)event[i].cookie;

			if (event[i].status <= LOAD_CUFILE_PENDING || k >= n || ended[k])
				continue;
			ended[k] = true;
			left--;
			r[k].there = event[i].status == LOAD_CUFILE_COMPLETE &&
				     event[i].got == r[k].n;
			if (!r[k].there)
				leave_batch(g, false, "a read of a batch",
					    (long)event[i].status);
		}
		if (left && dcp_now_ns(CLOCK_MONOTONIC) > until) {
			snprintf(why, size, "a batch of cuFile did not end in %.1f s",
				 g->timeout_ms / 2000.0);
			return -ETIMEDOUT;
		}
	}
	return 0;
}

/* Make the reads that batches can make. */
static int read_batches(struct load_gds *g, void *handle, struct load_gds_read *r, size_t n,
			char *why, size_t size)
{
	struct load_cufile_request request[MOST_BATCH];
	uint32_t most, now;
	void *id = take_batch(g, &most);
	int rc = 0;

	for (size_t from = 0; id && from < n; from += now) {
		struct load_cufile_error e;

		now = (uint32_t)DCP_MIN(n - from, (size_t)most);
		for (uint32_t k = 0; k < now; k++)
			request[k] = (struct load_cufile_request){
				.mode = LOAD_CUFILE_BATCH,
				.base = g->base,
				.off = (off_t)r[from + k].off,
				.at = (off_t)r[from + k].at,
				.n = r[from + k].n,
				.handle = handle,
				.opcode = LOAD_CUFILE_READ,
				.cookie = (void *)(uintptr_t)k,
			};
		e = g->call.cuFileBatchIOSubmit(id, now, request, 0);
		if (e.code != LOAD_CUFILE_SUCCESS) {
			leave_batch(g, true, "cuFileBatchIOSubmit", e.code);
			break;
		}
		rc = await_batch(g, id, r + from, now, why, size);
		/* cuFile cancels what it can, but does not report which reads it cancelled */
		if (rc < 0) {
			g->call.cuFileBatchIOCancel(id);
			g->lost = true;
			return rc;
		}
	}
	if (id)
		give_batch(g, id);
	return 0;
}

int load_gds_read(struct load_gds *g, uint32_t file, int fd, struct load_gds_read *r, size_t n,
		  char *why, size_t size)
{
	void *handle = NULL;
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		r[i].there = false;
	if (g->lost) {
		snprintf(why, size, "a batch of cuFile that did not end may still write");
		return -EREMOTEIO;
	}
	if (fd < 0) {
		count_refused(g, n, "no O_DIRECT", fd);
		return 0;
	}
	if (g->d->kind->enter(g->d) < 0) {
		count_refused(g, n, "no context", 0);
		return 0;
	}
	handle = handle_of(g, file, fd, n);
	if (handle && n > 1)
		rc = read_batches(g, handle, r, n, why, size);
	for (size_t i = 0; i < n && handle && rc == 0; i++) {
		ssize_t got;

		if (r[i].there)
			continue;
		got = g->call.cuFileRead(handle, g->base, r[i].n, (off_t)r[i].off,
					 (off_t)r[i].at);
		r[i].there = got == (ssize_t)r[i].n;
		if (!r[i].there)
			count_refused(g, 1, "cuFileRead", got);
	}
	g->d->kind->leave(g->d);
	return rc;
}

const char *load_gds_why(struct load_gds *g)
{
	int n;

	pthread_mutex_lock(&g->lock);
	n = snprintf(
		g->why, sizeof(g->why), "%s%s%s%s%s", g->how,
		g->registered ? "" : "; its memory is not registered",
		g->lost ? "; a batch did not end: its memory is kept until the process ends"
			: "",
		g->alone[0] ? "; not in batches, " : "", g->alone);
	if (g->refused)
		snprintf(g->why + n, sizeof(g->why) - (size_t)n, "; %llu reads by the host, %s",
			 (unsigned long long)g->refused, g->first);
	pthread_mutex_unlock(&g->lock);
	return g->why;
}
