/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_fault: memory that runs out, and files that cannot be read. A program that is linked with it
 * gets its malloc(), pread() and the like; with the thread sanitizer memory does not run out.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Allocations of this thread until one fails: 1: the next one; 0: none does. */
extern _Thread_local long t_fault_memory;
/* Is every later one to fail, too? */
extern _Thread_local bool t_fault_for_good;

/*
 * Asked before each read of a file by pread(), on any thread; NULL: nothing is. It may lower *@n,
 * and returns 0, or an errno that the read gives. No io_uring can be opened meanwhile, so that all
 * reads come by here.
 */
typedef int (*t_fault_read_fn)(int fd, size_t *n, off_t off);
extern t_fault_read_fn t_fault_read;

/* Not 0: memory cannot be registered with an io_uring, which gives this errno. */
extern int t_fault_register;

/* Not 0: huge pages are refused, with this errno. */
extern int t_fault_huge;

/* Not 0: shared memory is full, and an allocation of it gives this errno. */
extern int t_fault_shared;

/* Not 0: the kernel has no openat2(), or a container forbids it, with this errno. */
extern int t_fault_openat2;

/* Are all files on a file system of the network? */
extern bool t_fault_remote;
