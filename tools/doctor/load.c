/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the means that the collective loader would use. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tools/doctor/doctor.h"
#include "tools/load/error.h"
#include "tools/load/memory/memory.h"

void doctor_say(struct finding *f, enum state state, const char *advice, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->found, sizeof(f->found), fmt, ap);
	va_end(ap);
	f->state = state;
	f->advice = advice;
}

/* Can a process open the memory file of another process of the same user? */
static int open_of_other(int fd)
{
	int ends[2], other;
	char path[48], byte;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child == 0) { /* there until the pipe is closed */
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) != 0);
	}
	close(ends[0]);
	snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)child, fd);
	other = child < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
	other = other < 0 ? -errno : other;
	close(ends[1]);
	if (child > 0)
		waitpid(child, NULL, 0);
	return other;
}

void doctor_window(struct machine *m, struct finding *f)
{
	dcp_auto_fd int fd = memfd_create("dcpfs-doctor", MFD_CLOEXEC);
	dcp_auto_fd int other = fd < 0 ? -errno : open_of_other(fd);

	if (other >= 0)
		doctor_say(f, GOOD, NULL,
			   "ranks of one user on this machine can share memory: "
			   "each file is read once for all of them");
	else
		doctor_say(f, NOTE,
			   "each rank of dcpfs load reads for itself here: cold files are read "
			   "once a rank, not once a node",
			   "%s: %s",
			   fd < 0 ? "memfd_create" : "/proc/PID/fd of another process",
			   strerror(-other));
}

static int try_direct(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	int fd;

	if (type != FTW_F || st->st_size == 0)
		return 0;
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return errno == EINVAL ? 2 : 0;
	close(fd);
	return 1;
}

/* O_DIRECT on the file system of SOURCE, or of the cache, tried with a file without a name. */
void doctor_direct(struct machine *m, struct finding *f)
{
	dcp_auto_free char *cache = m->source ? NULL : load_cache_dir();
	const char *at = m->source ? m->source : cache;
	int rc = -1;

	if (m->source) {
		rc = nftw(m->source, try_direct, 16, FTW_PHYS | FTW_MOUNT);
	} else if (cache) {
		dcp_auto_fd int fd =
			open(cache, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);

		rc = fd >= 0 ? 1 : errno == EINVAL ? 2 : -1;
	}
	at = at ? at : "the cache: there is none";
	if (rc == 1)
		doctor_say(f, GOOD, NULL, "works at %.200s", at);
	else if (rc == 2)
		doctor_say(f, NOTE, "dcpfs load reads through the page cache there",
			   "is refused at %.200s", at);
	else
		doctor_say(f, NOTE, "dcpfs doctor SOURCE tries it where the checkpoint is",
			   "cannot be tried at %.200s", at);
}

void doctor_huge(struct machine *m, struct finding *f)
{
	dcp_auto_file FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
	char line[80] = "";

	if (file && !fgets(line, sizeof(line), file))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	doctor_say(f, GOOD, NULL, "transparent_hugepage: %s", line[0] ? line : "none");
	if (!line[0] || strstr(line, "[never]")) {
		f->state = NOTE;
		f->advice = "dcpfs load fills memory faster on them: echo madvise > "
			    "/sys/kernel/mm/transparent_hugepage/enabled";
	}
}

void doctor_gpu(struct machine *m, struct finding *f)
{
	struct dcpload_error err;

	if (load_cuda_probe(f->found, sizeof(f->found), &err) < 0)
		doctor_say(
			f, NOTE,
			"dcpfs load fills the memory of the host; for --device cuda it needs "
			"NVIDIA's driver with its libcuda.so.1, of CUDA 11.0 or later",
			"%.250s", err.text);
}

void doctor_ipc(struct machine *m, struct finding *f)
{
	struct dcpload_error err;
	int rc = load_cuda_probe_sharing(f->found, sizeof(f->found), &err);

	if (rc == 1)
		return;
	f->state = NOTE;
	if (rc < 0)
		snprintf(f->found, sizeof(f->found), "%.250s", err.text);
	f->advice = "used by --exchange all where there is no NCCL; without both, what ranks "
		    "send each other goes by way of the host, or each rank reads for itself: "
		    "the report of a load says which, and why";
}

void doctor_nccl(struct machine *m, struct finding *f)
{
	if (load_nccl_probe(f->found, sizeof(f->found)) == 0)
		return;
	f->state = NOTE;
	f->advice = "dcpfs load --device cuda --exchange all sends bytes from GPU to GPU by "
		    "CUDA IPC inside a node, and between nodes by way of the host; with "
		    "NVIDIA's NCCL, 2.14 or later, from GPU to GPU there, too";
}

void doctor_cufile(struct machine *m, struct finding *f)
{
	if (load_gds_probe(f->found, sizeof(f->found)) == 0)
		return;
	f->state = NOTE;
	f->advice = "dcpfs load --io gds reads by way of the host; it needs NVIDIA's "
		    "GPUDirect Storage: libcufile.so.0 and the kernel's module nvidia-fs";
}
