/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc: memory of devices that the ranks of a node read from each other, by CUDA IPC.
 *
 * Each rank has a window in its device's memory, which the others map for the length of an
 * execution. What goes into it is copied there first; when the ranks have met, and it has arrived,
 * each reads what it needs where it is. Memory that others have mapped must not be freed: only when
 * all ranks say that they have unmapped it, it is its owner's again.
 *
 * Functions return 0 or a negative errno. Those that take @err are collective, failures too; of the
 * others load_device_said() says more.
 */
#pragma once
#include <stdint.h>

#include "tools/load/comm/comm.h"
#include "tools/load/memory/memory.h"

struct load_ipc;

/*
 * Find out, by mapping and reading memory of each other, whether all ranks of @comm can. @why_not:
 * why this rank's @d cannot take part; NULL: it can. *@out is what an earlier call made, or NULL. A
 * failure leaves it as it is.
 */
int load_ipc_open(const struct dcpload_comm *comm, struct load_device *d, const char *why_not,
		  int timeout_ms, struct load_ipc **out, struct dcpload_error *err);
/* Not collective. NULL: nothing happens. */
void load_ipc_close(struct load_ipc *n);

/* Map the windows of all ranks; this one's is @bytes at @mine, as it was allocated. Call
 * load_ipc_unmap() afterwards, also after a failure. */
int load_ipc_map(struct load_ipc *n, void *mine, uint64_t bytes, struct dcpload_error *err);
/*
 * Collective. Wait until no copy is under way, and unmap the others' windows. A failure of any
 * rank, also to end its copies: this rank's window must not be freed.
 */
int load_ipc_unmap(struct load_ipc *n, struct dcpload_error *err);

/* Queue a copy of @bytes from host memory to the window. */
int load_ipc_copy(struct load_ipc *n, void *dst, const void *src, uint64_t bytes);
/*
 * Meet: when this returns, what all ranks copied has arrived. send[r]: where in this rank's
 * window the nsend[r] bytes are that rank r reads; recv[r] becomes the address of the nrecv[r]
 * bytes of rank r that this rank reads, unless that is this rank. A rank with @failed < 0 ends
 * it for all; later failures are passed to them too.
 */
int load_ipc_meet(struct load_ipc *n, const void *const *send, const uint64_t *nsend,
		  void **recv, const uint64_t *nrecv, int *failed, struct dcpload_error *err);
