/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/fault.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

_Thread_local long t_fault_memory;
_Thread_local bool t_fault_for_good;
t_fault_read_fn t_fault_read;
int t_fault_register;
int t_fault_huge;
enum { T_COLLAPSE = 25 }; /* MADV_COLLAPSE, which older headers do not have */
int t_fault_shared;
int t_fault_openat2;
bool t_fault_remote;

/* The function that this program's stands before: of libc, or of a sanitizer. */
#define REAL(name)                                                                             \
	static __typeof__(&name) found;                                                        \
	__typeof__(&name) real = __atomic_load_n(&found, __ATOMIC_RELAXED);                    \
	if (!real)                                                                             \
	__atomic_store_n(&found, real = (__typeof__(real))dlsym(RTLD_NEXT, #name),             \
			 __ATOMIC_RELAXED)

/* ---- memory ---- */

/* The thread sanitizer calls malloc() before anything instrumented may run. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define T_NO_MEMORY_FAULTS
#elif __has_feature(address_sanitizer)
#define T_CLANG_ASAN
#endif
#elif defined(__SANITIZE_THREAD__)
#define T_NO_MEMORY_FAULTS
#endif

/*
 * Clang links its address sanitizer into the program, so that it does not come next; malloc() is
 * called before it has begun, when instrumented code cannot run.
 */
#ifdef T_CLANG_ASAN
#define EARLY __attribute__((no_sanitize("address", "undefined")))
#define REAL_MEMORY(name)                                                                      \
	extern __typeof__(name) __interceptor_##name;                                          \
	__typeof__(&name) real = __interceptor_##name
#else
#define EARLY
#define REAL_MEMORY(name) REAL(name)
#endif

#ifndef T_NO_MEMORY_FAULTS
EARLY static bool is_out(void)
{
	if (t_fault_memory == 0 || --t_fault_memory > 0)
		return false;
	t_fault_memory = t_fault_for_good;
	errno = ENOMEM;
	return true;
}

/*
 * The leak checker passes over what the dynamic linker keeps for itself, which it knows by who
 * called malloc(). Here malloc() below is the caller, so it is named.
 */
PUBLIC const char *__lsan_default_suppressions(void);
PUBLIC const char *__lsan_default_suppressions(void)
{
	return "leak:/ld-linux";
}

EARLY PUBLIC void *malloc(size_t n)
{
	REAL_MEMORY(malloc);
	return is_out() ? NULL : real(n);
}

EARLY PUBLIC void *calloc(size_t k, size_t n)
{
	REAL_MEMORY(calloc);
	return is_out() ? NULL : real(k, n);
}

EARLY PUBLIC void *realloc(void *p, size_t n)
{
	REAL_MEMORY(realloc);
	return is_out() ? NULL : real(p, n);
}

EARLY PUBLIC void *aligned_alloc(size_t align, size_t n)
{
	REAL_MEMORY(aligned_alloc);
	return is_out() ? NULL : real(align, n);
}
#endif

PUBLIC int posix_fallocate64(int fd, off64_t off, off64_t n);
PUBLIC int posix_fallocate64(int fd, off64_t off, off64_t n)
{
	REAL(posix_fallocate64);
	return t_fault_shared ? t_fault_shared : real(fd, off, n);
}

PUBLIC int madvise(void *p, size_t n, int advice)
{
	REAL(madvise);
	errno = advice == MADV_HUGEPAGE || advice == T_COLLAPSE ? t_fault_huge : 0;
	return errno ? -1 : real(p, n, advice);
}

/* ---- files ---- */

static int ask_test(int fd, size_t *n, off_t off)
{
	t_fault_read_fn read = __atomic_load_n(&t_fault_read, __ATOMIC_ACQUIRE);

	return read ? read(fd, n, off) : 0;
}

PUBLIC ssize_t pread64(int fd, void *to, size_t n, off64_t off);
PUBLIC ssize_t pread64(int fd, void *to, size_t n, off64_t off)
{
	REAL(pread64);
	errno = ask_test(fd, &n, off);
	return errno ? -1 : real(fd, to, n, off);
}

PUBLIC int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
PUBLIC int io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
	REAL(io_uring_queue_init);
	return t_fault_read || !real ? -ENOSYS : real(entries, ring, flags);
}

PUBLIC int io_uring_register_buffers(void *ring, const struct iovec *memory, unsigned n);
PUBLIC int io_uring_register_buffers(void *ring, const struct iovec *memory, unsigned n)
{
	REAL(io_uring_register_buffers);
	return t_fault_register ? -t_fault_register : real(ring, memory, n);
}

PUBLIC int fstatfs64(int fd, struct statfs64 *out);
PUBLIC int fstatfs64(int fd, struct statfs64 *out)
{
	REAL(fstatfs64);
	int rc = real(fd, out);

	if (t_fault_remote)
		out->f_type = NFS_SUPER_MAGIC;
	return rc;
}

PUBLIC long syscall(long number, ...)
{
	REAL(syscall);
	va_list ap;
	long a[6];

	va_start(ap, number);
	for (size_t i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (number == __NR_openat2 && t_fault_openat2) {
		errno = t_fault_openat2;
		return -1;
	}
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
