// The part of the CUDA driver API that we use, declared by ourselves and resolved at run time: nothing here
// needs the CUDA toolkit to build or the driver to import. tests/cuda_abi.cpp checks it against the official
// header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvcached::cuda {

using Result = int;
using Device = int;
using DevicePtr = unsigned long long;
using Context = struct CUctx_st*;
using AllocationHandle = unsigned long long;

struct Location {
  int type;
  int id;
};

struct AllocationProp {  // CUmemAllocationProp, unchanged from 10.2 to 13
  int type;
  int requested_handle_types;
  Location location;
  void* win32_handle_metadata;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDesc {
  Location location;
  int flags;
};

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kNotFound = 500;
constexpr int kAttributeVmmSupported = 102;
constexpr int kAttributePosixFdSupported = 103;
constexpr int kAllocationPinned = 1;
constexpr int kLocationDevice = 1;
constexpr int kAccessReadWrite = 3;
constexpr int kGranularityMinimum = 0;
constexpr int kGranularityRecommended = 1;
constexpr int kHandleTypeNone = 0;
constexpr int kHandleTypePosixFd = 1;

// X(member, name, version that introduced it, signature); dlsym falls back to `symbol`.
#define KVCACHED_CUDA_FUNCTIONS(X)                                                                        \
  X(Init, "cuInit", "cuInit", 2000, (unsigned))                                                           \
  X(GetErrorName, "cuGetErrorName", "cuGetErrorName", 6000, (Result, const char**))                       \
  X(GetErrorString, "cuGetErrorString", "cuGetErrorString", 6000, (Result, const char**))                 \
  X(DeviceGet, "cuDeviceGet", "cuDeviceGet", 2000, (Device*, int))                                        \
  X(DeviceGetCount, "cuDeviceGetCount", "cuDeviceGetCount", 2000, (int*))                                 \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", "cuDeviceGetAttribute", 2000, (int*, int, Device))        \
  X(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, (Context*, Device))   \
  X(PrimaryCtxRelease, "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000, (Device))      \
  X(CtxPushCurrent, "cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000, (Context))                           \
  X(CtxPopCurrent, "cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000, (Context*))                             \
  X(MemGetInfo, "cuMemGetInfo", "cuMemGetInfo_v2", 3020, (std::size_t*, std::size_t*))                    \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", "cuMemGetAllocationGranularity", 10020, \
    (std::size_t*, const AllocationProp*, int))                                                           \
  X(MemAddressReserve, "cuMemAddressReserve", "cuMemAddressReserve", 10020,                               \
    (DevicePtr*, std::size_t, std::size_t, DevicePtr, unsigned long long))                                \
  X(MemAddressFree, "cuMemAddressFree", "cuMemAddressFree", 10020, (DevicePtr, std::size_t))              \
  X(MemCreate, "cuMemCreate", "cuMemCreate", 10020,                                                       \
    (AllocationHandle*, std::size_t, const AllocationProp*, unsigned long long))                          \
  X(MemRelease, "cuMemRelease", "cuMemRelease", 10020, (AllocationHandle))                                \
  X(MemMap, "cuMemMap", "cuMemMap", 10020,                                                                \
    (DevicePtr, std::size_t, std::size_t, AllocationHandle, unsigned long long))                          \
  X(MemUnmap, "cuMemUnmap", "cuMemUnmap", 10020, (DevicePtr, std::size_t))                                \
  X(MemSetAccess, "cuMemSetAccess", "cuMemSetAccess", 10020,                                              \
    (DevicePtr, std::size_t, const AccessDesc*, std::size_t))                                             \
  X(MemExportToShareableHandle, "cuMemExportToShareableHandle", "cuMemExportToShareableHandle", 10020,    \
    (void*, AllocationHandle, int, unsigned long long))

struct Driver {
#define KVCACHED_CUDA_MEMBER(member, name, symbol, version, signature) Result(*member) signature = nullptr;
  KVCACHED_CUDA_FUNCTIONS(KVCACHED_CUDA_MEMBER)
#undef KVCACHED_CUDA_MEMBER

  // "CUDA_ERROR_NAME (code): description"
  std::string explain(Result code) const;
};

// Path of the driver library to load instead of the system's libcuda.so.1 (nullopt). Misuse once another one
// is loaded: a process talks to one driver.
void set_library_path(std::optional<std::string> path);

// The initialised driver; loads it on first use and never unloads it. Throws Unavailable with the reason.
const Driver& driver();

// Why no device of this machine can be used, or nullopt. Never throws. Initialises the driver, which does not
// survive a later fork: ask in the process that will use it.
std::optional<std::string> unavailable_reason() noexcept;

}  // namespace kvcached::cuda
