/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport: how each kind of communicator is opened.
 *
 * Each returns one that its own close() frees, or describes in @err why there is none.
 */
#pragma once
#include "tools/load/comm/comm.h"

int load_alone_open(struct dcpload_comm **out, struct dcpload_error *err);

/* Open MPI's: MPI_COMM_WORLD, or a duplicate of what @mpi_comm points to. -ELIBACC: it is not here. */
int load_mpi_open(const void *mpi_comm, struct dcpload_comm **out, struct dcpload_error *err);

/* The ranks that torchrun, srun or mpirun started, by TCP (job.h). */
int load_tcp_open(struct dcpload_comm **out, struct dcpload_error *err);
