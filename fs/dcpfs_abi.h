/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpfs_abi: how a program reads a virtual file without FUSE moving its bytes.
 *
 * Specified in fs/ABI.md. This header needs nothing of dcpfs: copy it. All numbers in a layout
 * blob are little-endian; struct dcpfs_info is in the machine's order.
 *
 *	struct dcpfs_info info;
 *
 *	if (ioctl(fd, DCPFS_IOC_INFO, &info) == 0 && info.blob[0])
 *		... read <mount>/<info.blob>, open the files it names, pread what it says ...
 */
#pragma once
#include <linux/ioctl.h>
#include <stdint.h>

#define DCPFS_ABI_VERSION 1
#define DCPFS_INFO_MAGIC "DCPFSINF"
#define DCPFS_BLOB_MAGIC "DCPFSBLB"

/* Why there is no blob: the bytes of the file are nowhere stored as they are shown. */
#define DCPFS_INFO_CONVERTED (1u << 0) /* numbers are widened for .npy, or cast */
#define DCPFS_INFO_BROKEN (1u << 1)    /* it cannot be read at all */
#define DCPFS_INFO_DIRECTORY (1u << 2) /* the blob is that of all its tensors in one file */

struct dcpfs_info {
	uint8_t magic[8];
	uint32_t abi;
	uint32_t flags;
	uint64_t generation;  /* of the version: changes when anything it was made from does */
	uint64_t ino;         /* of the file or directory asked */
	uint64_t size;        /* bytes of the file; directory: of the one file of all tensors */
	uint64_t data_offset; /* where the elements begin: the length of the header */
	uint8_t mount[16];    /* the same for every file of one mount, of no other */
	char blob[64];        /* path below the mount point; "": none, read the file itself */
	uint8_t reserved[128];
};

#define DCPFS_IOC_INFO _IOR('D', 0x44, struct dcpfs_info)

/* Offsets count from the start of the blob. */
struct dcpfs_blob {
	uint8_t magic[8];
	uint32_t abi;
	uint32_t header_bytes; /* of this struct: 128 */
	uint64_t bytes;        /* of the blob */
	uint64_t generation;
	uint64_t ino;
	uint64_t size;                     /* of the virtual file */
	uint64_t inline_off, inline_bytes; /* its first bytes */
	uint64_t desc_off, ndesc;
	uint64_t file_off;
	uint32_t nfiles;
	uint32_t dir_bytes; /* the absolute path that file names are relative to, ... */
	uint64_t dir_off;   /* ... without a NUL */
	uint64_t reserved[2];
	uint32_t body_crc;   /* CRC-32 (IEEE 802.3) of everything after this struct */
	uint32_t header_crc; /* of the 124 bytes before this field */
};

/* A backing file, and its identity when the blob was made. */
struct dcpfs_blob_file {
	uint64_t dev, ino, size;
	int64_t mtime_ns, ctime_ns;
	uint64_t name_off; /* relative to the directory, never leading out of it */
	uint32_t name_bytes;
	uint32_t reserved;
};

#define DCPFS_BLOB_DIMS 4

/* @run bytes, repeated over the counted dimensions. What no descriptor covers is zeros. */
struct dcpfs_blob_desc {
	uint32_t file;
	uint32_t swap; /* 0, or bytes of a unit to be reversed on the way: 2, 4, 8 */
	uint32_t ndim; /* counted dimensions in use */
	uint32_t reserved;
	uint64_t src; /* in the file */
	uint64_t dst; /* in the virtual file */
	uint64_t run;
	uint64_t count[DCPFS_BLOB_DIMS];
	uint64_t src_stride[DCPFS_BLOB_DIMS];
	uint64_t dst_stride[DCPFS_BLOB_DIMS];
};
