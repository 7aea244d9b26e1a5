/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault: the process's SIGBUS handler, for programs that read shards through mappings.
 */
#pragma once

/* Install the handler and enable core/store/io/files.h. Call before threads start. 0 or
 * -errno. */
int dcpfs_fault_install(void);
