/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are the declarations of tools/load/memory those of the toolkit's cuda.h, cufile.h and nccl.h?
 * Compiling it is the test.
 */
#include <cuda.h>

#define LOAD_CUDA_COPY CUDA_MEMCPY3D
#define LOAD_CUDA_IPC_HANDLE CUipcMemHandle
#include "tools/load/memory/cuda_abi.h"

/* CUresult and other enums are unsigned. */
#define SAME(name, arguments)                                                                  \
	_Static_assert(                                                                        \
		__builtin_types_compatible_p(__typeof__(&name),                                \
					     __typeof__(((struct load_cuda_calls *)0)->name)), \
		#name);
LOAD_CUDA_CALLS(SAME)

#define NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
NUMBER(LOAD_CUDA_SUCCESS, CUDA_SUCCESS);
NUMBER(LOAD_CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
NUMBER(LOAD_CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
NUMBER(LOAD_CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
NUMBER(LOAD_CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
NUMBER(LOAD_CUDA_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
NUMBER(LOAD_CUDA_HOST, CU_MEMORYTYPE_HOST);
NUMBER(LOAD_CUDA_DEVICE, CU_MEMORYTYPE_DEVICE);
NUMBER(LOAD_CUDA_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
NUMBER(LOAD_CUDA_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
NUMBER(LOAD_CUDA_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
NUMBER(LOAD_CUDA_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
NUMBER(LOAD_CUDA_MODE_DEFAULT, CU_COMPUTEMODE_DEFAULT);
NUMBER(LOAD_CUDA_LAZY_PEER, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
NUMBER(sizeof(struct load_cuda_ipc_handle), sizeof(CUipcMemHandle));
NUMBER(LOAD_CUDA_UNIFIED, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
NUMBER(LOAD_CUDA_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
NUMBER(LOAD_CUDA_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
NUMBER(LOAD_CUDA_GLOBAL, CU_MEM_ATTACH_GLOBAL);
NUMBER(LOAD_CUDA_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);

#define MEMBER(ours, theirs)                                                                   \
	NUMBER(offsetof(struct load_cuda_copy, ours), offsetof(CUDA_MEMCPY3D, theirs));        \
	NUMBER(sizeof(((struct load_cuda_copy *)0)->ours), sizeof(((CUDA_MEMCPY3D *)0)->theirs))
MEMBER(src_x, srcXInBytes);
MEMBER(src_y, srcY);
MEMBER(src_z, srcZ);
MEMBER(src_lod, srcLOD);
MEMBER(src_type, srcMemoryType);
MEMBER(src_host, srcHost);
MEMBER(src_device, srcDevice);
MEMBER(src_array, srcArray);
MEMBER(zero0, reserved0);
MEMBER(src_pitch, srcPitch);
MEMBER(src_height, srcHeight);
MEMBER(dst_x, dstXInBytes);
MEMBER(dst_y, dstY);
MEMBER(dst_z, dstZ);
MEMBER(dst_lod, dstLOD);
MEMBER(dst_type, dstMemoryType);
MEMBER(dst_host, dstHost);
MEMBER(dst_device, dstDevice);
MEMBER(dst_array, dstArray);
MEMBER(zero1, reserved1);
MEMBER(dst_pitch, dstPitch);
MEMBER(dst_height, dstHeight);
MEMBER(width, WidthInBytes);
MEMBER(height, Height);
MEMBER(depth, Depth);
NUMBER(sizeof(struct load_cuda_copy), sizeof(CUDA_MEMCPY3D));

#if __has_include(<cufile.h>)
#include <cufile.h>

#define LOAD_CUFILE_ERROR CUfileError_t
#define LOAD_CUFILE_DESCR CUfileDescr_t
#define LOAD_CUFILE_PROPERTIES CUfileDrvProps_t
#define LOAD_CUFILE_REQUEST CUfileIOParams_t
#define LOAD_CUFILE_EVENT CUfileIOEvents_t
#include "tools/load/memory/cufile_abi.h"

#define SAME_RESULT(result, name, arguments)                                                   \
	_Static_assert(                                                                        \
		__builtin_types_compatible_p(                                                  \
			__typeof__(&name), __typeof__(((struct load_cufile_calls *)0)->name)), \
		#name);
LOAD_CUFILE_CALLS(SAME_RESULT)
LOAD_CUFILE_MORE(SAME_RESULT)
NUMBER(LOAD_CUFILE_BATCH, CUFILE_BATCH);
NUMBER(LOAD_CUFILE_READ, CUFILE_READ);
NUMBER(LOAD_CUFILE_WAITING, CUFILE_WAITING);
NUMBER(LOAD_CUFILE_PENDING, CUFILE_PENDING);
NUMBER(LOAD_CUFILE_COMPLETE, CUFILE_COMPLETE);
NUMBER(LOAD_CUFILE_COMPAT, CU_FILE_ALLOW_COMPAT_MODE);
NUMBER(sizeof(struct load_cufile_properties), sizeof(CUfileDrvProps_t));
NUMBER(offsetof(struct load_cufile_properties, control),
       offsetof(CUfileDrvProps_t, nvfs.dcontrolflags));
NUMBER(offsetof(struct load_cufile_properties, batch),
       offsetof(CUfileDrvProps_t, max_batch_io_size));
NUMBER(sizeof(struct load_cufile_request), sizeof(CUfileIOParams_t));
NUMBER(offsetof(struct load_cufile_request, base),
       offsetof(CUfileIOParams_t, u.batch.devPtr_base));
NUMBER(offsetof(struct load_cufile_request, off),
       offsetof(CUfileIOParams_t, u.batch.file_offset));
NUMBER(offsetof(struct load_cufile_request, at),
       offsetof(CUfileIOParams_t, u.batch.devPtr_offset));
NUMBER(offsetof(struct load_cufile_request, n), offsetof(CUfileIOParams_t, u.batch.size));
NUMBER(offsetof(struct load_cufile_request, handle), offsetof(CUfileIOParams_t, fh));
NUMBER(offsetof(struct load_cufile_request, opcode), offsetof(CUfileIOParams_t, opcode));
NUMBER(offsetof(struct load_cufile_request, cookie), offsetof(CUfileIOParams_t, cookie));
NUMBER(sizeof(struct load_cufile_event), sizeof(CUfileIOEvents_t));
NUMBER(offsetof(struct load_cufile_event, status), offsetof(CUfileIOEvents_t, status));
NUMBER(offsetof(struct load_cufile_event, got), offsetof(CUfileIOEvents_t, ret));
NUMBER(LOAD_CUFILE_SUCCESS, CU_FILE_SUCCESS);
NUMBER(LOAD_CUFILE_FD, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
NUMBER(sizeof(struct load_cufile_error), sizeof(CUfileError_t));
NUMBER(offsetof(struct load_cufile_error, cuda), offsetof(CUfileError_t, cu_err));
NUMBER(sizeof(struct load_cufile_descr), sizeof(CUfileDescr_t));
NUMBER(offsetof(struct load_cufile_descr, handle), offsetof(CUfileDescr_t, handle));
NUMBER(offsetof(struct load_cufile_descr, fs_ops), offsetof(CUfileDescr_t, fs_ops));
#endif

#if __has_include(<nccl.h>)
#include <nccl.h>

#define LOAD_NCCL_ID ncclUniqueId
#define LOAD_NCCL_CONFIG ncclConfig_t
#define LOAD_NCCL_RESULT ncclResult_t
#define LOAD_NCCL_TYPE ncclDataType_t
#include "tools/load/memory/nccl_abi.h"

#define SAME_NCCL(result, name, arguments)                                                     \
	_Static_assert(                                                                        \
		__builtin_types_compatible_p(__typeof__(&name),                                \
					     __typeof__(((struct load_nccl_calls *)0)->name)), \
		#name);
LOAD_NCCL_CALLS(SAME_NCCL)
NUMBER(LOAD_NCCL_SUCCESS, ncclSuccess);
NUMBER(LOAD_NCCL_IN_PROGRESS, ncclInProgress);
NUMBER(LOAD_NCCL_UINT8, ncclUint8);
NUMBER(LOAD_NCCL_LEAST, NCCL_VERSION(2, 14, 0));
NUMBER(sizeof(struct load_nccl_id), sizeof(ncclUniqueId));
NUMBER(offsetof(struct load_nccl_config, magic), offsetof(ncclConfig_t, magic));
NUMBER(offsetof(struct load_nccl_config, version), offsetof(ncclConfig_t, version));
NUMBER(offsetof(struct load_nccl_config, blocking), offsetof(ncclConfig_t, blocking));
#endif

int main(void)
{
	return 0;
}
