/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module: the function that libdcpload-mpi.so exports for libdcpload.
 */
#pragma once
#include "tools/load/error.h"

/*
 * MPI_COMM_WORLD (@mpi_comm NULL), or a duplicate of what @mpi_comm points to. @abi: DCPLOAD_ABI of
 * the caller; @expect: how many ranks there should be, 0: any number.
 */
DCPLOAD_API int dcpload_mpi_open(uint32_t abi, const void *mpi_comm, uint32_t expect,
				 int timeout_ms, struct dcpload_comm **out,
				 struct dcpload_error *err);
