// Compiled, never run: our declarations of the driver API against the official header, where there is one
// (cmake -DKVCACHED_CUDA_INCLUDE=/usr/local/cuda/include).
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>

#include "vmm/cuda_driver.hpp"

namespace {

using namespace kvcached::cuda;

static_assert(sizeof(AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProp, requested_handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(AllocationHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(DevicePtr) == sizeof(CUdeviceptr) && sizeof(Device) == sizeof(CUdevice));
static_assert(sizeof(Context) == sizeof(CUcontext) && sizeof(Result) == sizeof(CUresult));

static_assert(kSuccess == CUDA_SUCCESS && kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(kInvalidDevice == CUDA_ERROR_INVALID_DEVICE && kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kAttributeVmmSupported == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(kAttributePosixFdSupported == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(kHandleTypeNone == CU_MEM_HANDLE_TYPE_NONE &&
              kHandleTypePosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED &&
              kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
              kGranularityRecommended == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

// Same number of arguments, each of the same size: what the calling convention needs.
template <typename Ours, typename Official>
struct SameShape;
template <typename... Ours, typename... Official>
struct SameShape<Result (*)(Ours...), CUresult(CUDAAPI*)(Official...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(Ours) != sizeof...(Official)) {
      return false;
    } else {
      return ((sizeof(Ours) == sizeof(Official)) && ...);
    }
  }();
};

#define SAME_SHAPE(member, official)                                               \
  static_assert(SameShape<decltype(Driver::member), official>::value, "cu" #member \
                                                                      " differs "  \
                                                                      "from " #official)

SAME_SHAPE(Init, PFN_cuInit_v2000);
SAME_SHAPE(GetErrorName, PFN_cuGetErrorName_v6000);
SAME_SHAPE(GetErrorString, PFN_cuGetErrorString_v6000);
SAME_SHAPE(DeviceGet, PFN_cuDeviceGet_v2000);
SAME_SHAPE(DeviceGetCount, PFN_cuDeviceGetCount_v2000);
SAME_SHAPE(DeviceGetAttribute, PFN_cuDeviceGetAttribute_v2000);
SAME_SHAPE(PrimaryCtxRetain, PFN_cuDevicePrimaryCtxRetain_v7000);
SAME_SHAPE(PrimaryCtxRelease, PFN_cuDevicePrimaryCtxRelease_v11000);
SAME_SHAPE(CtxPushCurrent, PFN_cuCtxPushCurrent_v4000);
SAME_SHAPE(CtxPopCurrent, PFN_cuCtxPopCurrent_v4000);
SAME_SHAPE(MemGetInfo, PFN_cuMemGetInfo_v3020);
SAME_SHAPE(MemGetAllocationGranularity, PFN_cuMemGetAllocationGranularity_v10020);
SAME_SHAPE(MemAddressReserve, PFN_cuMemAddressReserve_v10020);
SAME_SHAPE(MemAddressFree, PFN_cuMemAddressFree_v10020);
SAME_SHAPE(MemCreate, PFN_cuMemCreate_v10020);
SAME_SHAPE(MemRelease, PFN_cuMemRelease_v10020);
SAME_SHAPE(MemMap, PFN_cuMemMap_v10020);
SAME_SHAPE(MemUnmap, PFN_cuMemUnmap_v10020);
SAME_SHAPE(MemSetAccess, PFN_cuMemSetAccess_v10020);
SAME_SHAPE(MemExportToShareableHandle, PFN_cuMemExportToShareableHandle_v10020);

}  // namespace
