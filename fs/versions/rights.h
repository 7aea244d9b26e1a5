/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rights: who may read what in a mount that other users may enter (allow_other).
 *
 * The kernel decides by the owner, group and mode shown, so these never let in a user whom the
 * source keeps out: they are the intersection (core/model/rights.h) of the rights of everything
 * that a node's bytes or names come from.
 *
 *	MNT, .dcpfs/, tags/, config.json, stats    the way to SOURCE, and listing it
 *	a version, shard/, a layout, a rank        the same of the version's directory
 *	a tensor                                   the files of its pieces, and those of none;
 *	                                           all, where files name each other's keys
 *	npy/ raw/ safetensors/                     listed as all data is read; entered as those
 *	                                           files of none are
 *	objects, what is written of all keys       all files of the version but sidecars
 *	layout.json                                the same, and the layout's file
 *	files/, and each in it                     their directories; that file
 *	hf/                                        listed as all data and the directories of its
 *	                                           assets are; entered as the version
 *	what is in it, and in ranks below it       all files of the version, and config.json
 *	an asset                                   that file
 *	blobs                                      as the file they are about
 *	by-key/, status.json                       all files of all versions that are open
 *	errors.json, incomplete.json, log          the user who mounts: what could not be read
 *	                                           says nothing about rights
 *
 * They are determined when a version is opened. When they change it becomes another version, with
 * inodes of its own, so that nothing the kernel cached applies to it; open files stay open.
 *
 * Without allow_other the kernel lets in only the user who mounts. Then no rights are determined
 * here, and everything shows the mode of SOURCE.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct dcp_version;
struct dcpfs;
struct dcpfs_version;

/* Read the rights on the way to SOURCE. True: they changed. Watcher's thread only. */
bool dcpfs_rights_refresh(struct dcpfs *fs);

/* Read the rights on the way to the new version @ver. -ENOMEM. */
int dcpfs_rights_find(const struct dcpfs *fs, struct dcpfs_version *ver);

/* Read the rights to the files of @ver, before @v is published in it. -ENOMEM. */
int dcpfs_rights_open(struct dcpfs_version *ver, struct dcp_version *v);

/* Have the rights on the way to @ver (NULL: to SOURCE) changed? Watcher's thread only. */
bool dcpfs_rights_changed(const struct dcpfs *fs, const struct dcpfs_version *ver);

/*
 * Set owner, group and permission bits of node @ino in @st. @ver: the version of its slot, or
 * NULL.
 */
void dcpfs_rights_show(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       struct stat *st);
