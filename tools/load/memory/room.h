/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room: how much memory of this node can still be had?
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Bytes, at most: what the kernel says is available, swap included, or what is left of the limit of a cgroup that this
 * process is in. UINT64_MAX: not known. @what: which of them it is. */
uint64_t load_room(char *what, size_t size);
/* The same of the files below @root: proc/meminfo, proc/self/cgroup, sys/fs/cgroup. */
uint64_t load_room_of(const char *root, char *what, size_t size);
