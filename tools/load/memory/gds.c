/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/memory/gds.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tools/load/memory/cufile_abi.h"

#define LIBRARY "libcufile.so.0"

enum { MOST_FILES = 1024 }; /* that are kept open */

struct file {
	void *handle;
	int fd;
	enum { NEW, GOOD, REFUSED } state;
};

struct load_gds {
	struct load_cufile_calls call;
	struct load_device *d;
	void *base;
	uint64_t bytes;
	bool opened, registered;
	pthread_mutex_t lock; /* of what follows */
	struct file file[MOST_FILES];
	uint64_t refused; /* reads that the host made */
	char first[80];   /* why the first of them was */
	char why[160];
};

static int find_calls(struct load_gds *g, void *library, char *why, size_t size)
{
#define NAME(result, name, arguments) #name,
	static const char *const names[] = { LOAD_CUFILE_CALLS(NAME) };
#undef NAME
	void **at = (void **)&g->call;

	_Static_assert(sizeof(g->call) == DCP_LEN(names) * sizeof(*at), "pointers alone");
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		at[i] = dlsym(library, names[i]);
		if (!at[i]) {
			snprintf(why, size, LIBRARY " has no %s", names[i]);
			return -ELIBBAD;
		}
	}
	return 0;
}

/* Is nvidia-fs loaded? Without its device files, as in a container that was not given them, opening cuFile
 * would close descriptor 0. */
static int find_driver(bool *loaded, char *why, size_t size)
{
	*loaded = access("/proc/driver/nvidia-fs", F_OK) == 0;
	if (!*loaded || access("/dev/nvidia-fs0", F_OK) == 0)
		return 0;
	snprintf(why, size, "nvidia-fs is loaded, but /dev/nvidia-fs0 is not here");
	return -ENODEV;
}

static int open_driver(struct load_gds *g, char *why, size_t size)
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
		g->registered = g->call.cuFileBufRegister(g->base, g->bytes, 0).code ==
				LOAD_CUFILE_SUCCESS;
	} else {
		snprintf(why, size, "cuFileDriverOpen: error %u, of CUDA %u", e.code, e.cuda);
		rc = -ENODEV;
	}
	g->d->kind->leave(g->d);
	return rc;
}

/* The library and its calls; *loaded: is nvidia-fs? */
static int open_library(struct load_gds *g, bool *loaded, char *why, size_t size)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *text = library ? NULL : dlerror();
	int rc;

	if (!library) {
		snprintf(why, size, "%s", text ? text : LIBRARY " cannot be opened");
		return -ELIBACC;
	}
	rc = find_calls(g, library, why, size);
	dlclose(library);
	return rc < 0 ? rc : find_driver(loaded, why, size);
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

int load_gds_open(struct load_device *d, uint64_t n, struct load_gds **out, char *why,
		  size_t size)
{
	struct load_gds *g = calloc(1, sizeof(*g));
	bool loaded = false;
	int rc;

	if (!g)
		return -ENOMEM;
	pthread_mutex_init(&g->lock, NULL);
	g->d = d;
	g->bytes = n;
	snprintf(why, size, "out of memory");
	rc = open_library(g, &loaded, why, size);
	if (rc == 0)
		rc = open_driver(g, why, size);
	if (rc < 0) {
		load_gds_close(g);
		return rc;
	}
	snprintf(g->why, sizeof(g->why), "%s%s",
		 loaded ? "cuFile with nvidia-fs"
			: "cuFile in its compatibility mode: nvidia-fs is not loaded",
		 g->registered ? "" : "; its memory is not registered");
	*out = g;
	return 0;
}

void load_gds_close(struct load_gds *g)
{
	if (!g)
		return;
	if (g->opened && g->d->kind->enter(g->d) == 0) {
		for (size_t i = 0; i < MOST_FILES; i++) {
			if (g->file[i].state != GOOD)
				continue;
			g->call.cuFileHandleDeregister(g->file[i].handle);
			close(g->file[i].fd);
		}
		if (g->registered)
			g->call.cuFileBufDeregister(g->base);
		g->call.cuFileDriverClose();
		g->d->kind->leave(g->d);
	}
	if (g->base)
		g->d->kind->free(g->d, g->base, g->bytes);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

char *load_gds_memory(const struct load_gds *g)
{
	return g->base;
}

/* Under the lock. */
static void refuse(struct load_gds *g, const char *call, long code)
{
	if (g->refused++ == 0)
		snprintf(g->first, sizeof(g->first), "%s: %ld", call, code);
}

/* The handle of a file, registered when it is first read; NULL: it is refused. */
static void *handle_of(struct load_gds *g, uint32_t number, int fd)
{
	struct file *f = number < MOST_FILES ? &g->file[number] : NULL;
	struct load_cufile_descr descr = { .type = LOAD_CUFILE_FD };
	struct load_cufile_error e;
	void *handle = NULL;

	pthread_mutex_lock(&g->lock);
	if (f && f->state == NEW) {
		f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		descr.handle.fd = f->fd;
		e = f->fd < 0 ? (struct load_cufile_error){ (unsigned)errno, 0 }
			      : g->call.cuFileHandleRegister(&f->handle, &descr);
		f->state = e.code == LOAD_CUFILE_SUCCESS ? GOOD : REFUSED;
		if (f->state == REFUSED && f->fd >= 0)
			close(f->fd);
		if (f->state == REFUSED)
			refuse(g, "cuFileHandleRegister", e.code);
	} else if (!f || f->state == REFUSED) {
		refuse(g, "more files than are kept open", MOST_FILES);
	}
	if (f && f->state == GOOD)
		handle = f->handle;
	pthread_mutex_unlock(&g->lock);
	return handle;
}

bool load_gds_read(struct load_gds *g, uint32_t file, int fd, uint64_t off, uint64_t at,
		   uint64_t n)
{
	void *handle;
	ssize_t got = -1;

	if (fd < 0) {
		pthread_mutex_lock(&g->lock);
		refuse(g, "no O_DIRECT", fd);
		pthread_mutex_unlock(&g->lock);
		return false;
	}
	if (g->d->kind->enter(g->d) < 0)
		return false;
	handle = handle_of(g, file, fd);
	if (handle) {
		got = g->call.cuFileRead(handle, g->base, n, (off_t)off, (off_t)at);
		if (got != (ssize_t)n) {
			pthread_mutex_lock(&g->lock);
			refuse(g, "cuFileRead", got);
			pthread_mutex_unlock(&g->lock);
		}
	}
	g->d->kind->leave(g->d);
	return handle && got == (ssize_t)n;
}

const char *load_gds_why(struct load_gds *g)
{
	size_t n = strcspn(g->why, ";");

	pthread_mutex_lock(&g->lock);
	if (g->refused)
		snprintf(g->why + n, sizeof(g->why) - n, "; %llu reads by the host, %s",
			 (unsigned long long)g->refused, g->first);
	pthread_mutex_unlock(&g->lock);
	return g->why;
}
