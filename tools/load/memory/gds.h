/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gds: reads of files straight into the memory of a GPU, by NVIDIA's cuFile.
 *
 * Where it has no driver of its own for that (nvidia-fs), cuFile reads by way of the host: its
 * compatibility mode. Files that it refuses are read by the host, and the reason is kept.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "tools/load/memory/memory.h"

struct load_gds;

/*
 * Have @n bytes of @d's memory for reads, which end within @timeout_ms. -ELIBACC, -ENODEV, ... with
 * the reason in @why, of @size bytes: it cannot be used here.
 */
int load_gds_open(struct load_device *d, uint64_t n, uint32_t timeout_ms, struct load_gds **out,
		  char *why, size_t size);
/* @keep: copies on the device may still use its memory, which is kept until the process ends. */
void load_gds_close(struct load_gds *g, bool keep);
/* Describe its state on this machine in one line; 0, or an error as above. */
int load_gds_probe(char *found, size_t size);
char *load_gds_memory(const struct load_gds *g);

/* @n bytes at @off of a file to byte @at of the memory, all multiples of 4 KiB. */
struct load_gds_read {
	uint64_t off, at, n;
	bool there; /* set: they are there; otherwise the host has to read them */
};

/*
 * Make @n reads of file number @file, open as @fd with O_DIRECT (negative: it cannot be): as a
 * batch, what that leaves one by one. Any thread. -ETIMEDOUT, -EREMOTEIO: a batch was begun and its
 * end is not known; @why, of @size bytes.
 */
int load_gds_read(struct load_gds *g, uint32_t file, int fd, struct load_gds_read *r, size_t n,
		  char *why, size_t size);

/* How it works here, and what it refused and why: a line. */
const char *load_gds_why(struct load_gds *g);
