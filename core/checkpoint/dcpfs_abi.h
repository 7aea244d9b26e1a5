/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpfs_abi: where the bytes of a virtual file are stored, for programs that read them without
 * FUSE.
 *
 * Specified in fs/ABI.md. This header depends on nothing else of dcpfs and may be copied. All
 * numbers in a layout blob are little-endian; those of struct dcpfs_info have the byte order of the
 * machine.
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

/* Flags. A file with one of the first two flags has no blob, because its bytes are not stored in
 * the form in which they are shown. */
#define DCPFS_INFO_CONVERTED (1u << 0) /* elements are converted: widened for .npy, or cast */
#define DCPFS_INFO_BROKEN (1u << 1)    /* the file cannot be read at all */
#define DCPFS_INFO_DIRECTORY                                                                   \
	(1u << 2) /* a directory; its blob is that of a single file of all its tensors */

struct dcpfs_info {
	uint8_t magic[8];
	uint32_t abi;
	uint32_t flags;      /* DCPFS_INFO_* */
	uint64_t generation; /* of the version: changes when one of its files changes */
	uint64_t ino;        /* of the file or directory that the call was made on */
	uint64_t size; /* bytes of the file; directory: of the one file with all tensors */
	uint64_t data_offset; /* of the first element: the length of the header */
	uint8_t mount[16];    /* identifies the mount: equal for all its files */
	char blob[64]; /* path below the mount point; "": no blob, read the file itself */
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
	uint64_t inline_off, inline_bytes; /* the first bytes of the virtual file */
	uint64_t desc_off, ndesc;          /* array of struct dcpfs_blob_desc */
	uint64_t file_off;                 /* array of struct dcpfs_blob_file */
	uint32_t nfiles;
	uint32_t dir_bytes; /* length of the absolute path that file names are relative to */
	uint64_t dir_off;   /* offset of that path; it does not end with a NUL */
	uint64_t reserved[2];
	uint32_t body_crc;   /* CRC-32 (IEEE 802.3) of everything after this struct */
	uint32_t header_crc; /* of the 124 bytes before this field */
};

/* A backing file, and its identity when the blob was made. */
struct dcpfs_blob_file {
	uint64_t dev, ino, size;
	int64_t mtime_ns, ctime_ns;
	uint64_t name_off; /* path relative to the directory, never leading out of it */
	uint32_t name_bytes;
	uint32_t reserved;
};

#define DCPFS_BLOB_DIMS 4

/* @run bytes, repeated over the counted dimensions. Bytes that no descriptor covers are zero. */
struct dcpfs_blob_desc {
	uint32_t file;
	uint32_t
		swap; /* 2, 4, 8: the byte order of units of this size is reversed; 0: it is not */
	uint32_t ndim; /* counted dimensions in use */
	uint32_t reserved;
	uint64_t src; /* offset in the backing file */
	uint64_t dst; /* offset in the virtual file */
	uint64_t run; /* consecutive bytes */
	uint64_t count[DCPFS_BLOB_DIMS];
	uint64_t src_stride[DCPFS_BLOB_DIMS];
	uint64_t dst_stride[DCPFS_BLOB_DIMS];
};
