// A libcuda.so.1 in software: the virtual memory calls over memfd and mmap, strict about the documented
// rules. It runs no kernels. Two devices; memory is real, so that what was mapped can be written and read.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "libcuda_standin_world.hpp"

using namespace standin;

namespace {

thread_local std::vector<Context> context_stack;

constexpr std::uintptr_t kFirstContext = 0x100;  // of device 0

std::size_t device_of(Context context) {
  return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(context) - kFirstContext);
}

#define ENTER(function) \
  Call call(function);  \
  if (call.verdict() != kSuccess) return call.verdict()

bool is_granular(std::uint64_t value, int device) {
  return value % world().devices[device].granularity_bytes == 0;
}

// Addresses belong to no device: they suit the finest, and are aligned for the coarsest.
std::pair<std::size_t, std::size_t> granularities() {
  const auto [least, most] =
      std::minmax(world().devices[0].granularity_bytes, world().devices[1].granularity_bytes);
  return {least, most};
}

bool is_inside_one_reservation(DevicePtr first, std::size_t bytes) {
  auto it = world().reservations.upper_bound(first);
  if (it == world().reservations.begin()) return false;
  --it;
  return first + bytes <= it->first + it->second;
}

bool overlaps_mapping(DevicePtr first, std::size_t bytes) {
  auto it = world().mappings.lower_bound(first + bytes);
  if (it == world().mappings.begin()) return false;
  --it;
  return it->first + it->second.bytes > first;
}

// The mappings that make up [first, first + bytes) exactly, or none if the range cuts one or has a hole.
std::vector<DevicePtr> whole_mappings(DevicePtr first, std::size_t bytes) {
  std::vector<DevicePtr> found;
  DevicePtr at = first;
  for (auto it = world().mappings.find(first); at < first + bytes; ++it) {
    if (it == world().mappings.end() || it->first != at) return {};
    found.push_back(at);
    at += it->second.bytes;
  }
  if (at != first + bytes) return {};
  return found;
}

// Memory returns to the device after both the handle's release and the end of its last mapping.
void drop_if_unused(AllocationHandle handle) {
  const auto it = world().allocations.find(handle);
  if (!it->second.is_released || it->second.mappings > 0) return;
  ::close(it->second.fd);
  if (!it->second.is_imported) world().devices[it->second.device].held_bytes -= it->second.bytes;
  world().allocations.erase(it);
}

bool is_device(const Location& location) {
  return location.type == kLocationDevice && location.id >= 0 && location.id < kDevices;
}

}  // namespace

EXPORTED Result cuInit(unsigned flags) {
  ENTER("cuInit");
  if (flags != 0) return call.violation("flags must be 0");
  world().is_initialised = true;
  return kSuccess;
}

EXPORTED Result cuGetErrorName(Result code, const char** name) {
  static const std::map<Result, const char*> names = {
      {kSuccess, "CUDA_SUCCESS"},
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
      {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
  };
  const auto found = names.find(code);
  *name = found == names.end() ? nullptr : found->second;
  return *name == nullptr ? kInvalidValue : kSuccess;
}

EXPORTED Result cuGetErrorString(Result code, const char** text) { return cuGetErrorName(code, text); }

EXPORTED Result cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount");
  *count = kDevices;
  return kSuccess;
}

EXPORTED Result cuDeviceGet(Device* device, int index) {
  ENTER("cuDeviceGet");
  if (index < 0 || index >= kDevices) return kInvalidDevice;
  *device = index;
  return kSuccess;
}

EXPORTED Result cuDeviceGetName(char* name, int bytes, Device) {
  ENTER("cuDeviceGetName");
  std::snprintf(name, static_cast<std::size_t>(bytes), "libcuda stand-in");
  return kSuccess;
}

EXPORTED Result cuDriverGetVersion(int* version) {
  ENTER("cuDriverGetVersion");
  *version = 12000;
  return kSuccess;
}

EXPORTED Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  ENTER("cuDeviceGetAttribute");
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  *value = world().devices[device].attributes[attribute];
  return kSuccess;
}

EXPORTED Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  ENTER("cuDevicePrimaryCtxRetain");
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  ++world().contexts;
  *context = reinterpret_cast<Context>(kFirstContext + static_cast<std::uintptr_t>(device));
  return kSuccess;
}

EXPORTED Result cuDevicePrimaryCtxRelease_v2(Device) {
  ENTER("cuDevicePrimaryCtxRelease");
  if (world().contexts == 0) return call.violation("released more often than retained", kInvalidContext);
  --world().contexts;
  return kSuccess;
}

EXPORTED Result cuCtxPushCurrent_v2(Context context) {
  ENTER("cuCtxPushCurrent");
  context_stack.push_back(context);
  return kSuccess;
}

EXPORTED Result cuCtxPopCurrent_v2(Context* context) {
  // Not a point of injection: a scope that cannot end has no sensible answer.
  const std::lock_guard<std::mutex> guard(world().mutex);
  if (context_stack.empty()) return kInvalidContext;
  *context = context_stack.back();
  context_stack.pop_back();
  return kSuccess;
}

EXPORTED Result cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  ENTER("cuMemGetInfo");
  if (context_stack.empty()) return call.violation("no context is current", kInvalidContext);
  const DeviceFacts& device = world().devices[device_of(context_stack.back())];
  *total_bytes = device.total_bytes;
  *free_bytes = device.total_bytes - device.held_bytes;
  return kSuccess;
}

EXPORTED Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProp* prop, int option) {
  ENTER("cuMemGetAllocationGranularity");
  if (prop->type != kAllocationPinned || (option != kGranularityMinimum && option != kGranularityRecommended))
    return call.violation("type or option");
  if (!is_device(prop->location)) return call.violation("location", kInvalidDevice);
  *bytes = world().devices[prop->location.id].granularity_bytes;
  return kSuccess;
}

EXPORTED Result cuMemAddressReserve(DevicePtr* base, std::size_t bytes, std::size_t alignment, DevicePtr hint,
                                    unsigned long long flags) {
  ENTER("cuMemAddressReserve");
  const auto [granularity, slack] = granularities();
  if (bytes == 0 || bytes % granularity != 0 || alignment != 0 || hint != 0 || flags != 0) {
    return call.violation("size not granular, or alignment, hint, flags not 0");
  }
  void* raw = ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return kOutOfMemory;
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (start + slack - 1) / slack * slack;
  if (aligned > start) ::munmap(raw, aligned - start);
  if (start + slack > aligned) ::munmap(pointer(aligned + bytes), start + slack - aligned);
  world().reservations[aligned] = bytes;
  *base = aligned;
  return kSuccess;
}

EXPORTED Result cuMemAddressFree(DevicePtr base, std::size_t bytes) {
  ENTER("cuMemAddressFree");
  const auto found = world().reservations.find(base);
  if (found == world().reservations.end() || found->second != bytes)
    return call.violation("not a whole reservation");
  if (overlaps_mapping(base, bytes)) return call.violation("something is still mapped");
  ::munmap(pointer(base), bytes);
  world().reservations.erase(found);
  return kSuccess;
}

EXPORTED Result cuMemCreate(AllocationHandle* handle, std::size_t bytes, const AllocationProp* prop,
                            unsigned long long flags) {
  ENTER("cuMemCreate");
  if (prop->type != kAllocationPinned) return call.violation("type");
  if (!is_device(prop->location)) return call.violation("location", kInvalidDevice);
  if (bytes == 0 || !is_granular(bytes, prop->location.id) || flags != 0)
    return call.violation("size not granular or flags not 0");
  if (prop->requested_handle_types != kHandleTypeNone && prop->requested_handle_types != kHandleTypePosixFd)
    return call.violation("handle types");
  World& w = world();
  DeviceFacts& device = w.devices[prop->location.id];
  if (device.held_bytes > device.total_bytes || bytes > device.total_bytes - device.held_bytes)
    return kOutOfMemory;
  const int fd = ::memfd_create("libcuda-standin", MFD_CLOEXEC);
  if (fd < 0) return kOutOfMemory;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    ::close(fd);
    return kOutOfMemory;
  }
  device.held_bytes += bytes;
  *handle = w.next_handle++;
  w.allocations[*handle] = {bytes, prop->location.id, fd, prop->requested_handle_types, false, false, 0};
  return kSuccess;
}

EXPORTED Result cuMemExportToShareableHandle(void* shareable, AllocationHandle handle, int type,
                                             unsigned long long flags) {
  ENTER("cuMemExportToShareableHandle");
  const auto found = world().allocations.find(handle);
  if (found == world().allocations.end() || found->second.is_released)
    return call.violation("unknown handle");
  if (flags != 0 || type != kHandleTypePosixFd) return call.violation("type or flags");
  if (found->second.handle_types != type) return call.violation("not created for this type");
  const int fd = ::dup(found->second.fd);
  if (fd < 0) return kOutOfMemory;
  *static_cast<int*>(shareable) = fd;
  return kSuccess;
}

EXPORTED Result cuMemImportFromShareableHandle(AllocationHandle* handle, void* shareable, int type) {
  ENTER("cuMemImportFromShareableHandle");
  if (type != kHandleTypePosixFd) return call.violation("type");
  struct stat facts{};
  const int fd = ::dup(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
  if (fd < 0 || ::fstat(fd, &facts) != 0) return kInvalidValue;
  World& w = world();
  *handle = w.next_handle++;
  w.allocations[*handle] = {static_cast<std::size_t>(facts.st_size), 0, fd, kHandleTypeNone, true, false, 0};
  return kSuccess;
}

EXPORTED Result cuMemRelease(AllocationHandle handle) {
  ENTER("cuMemRelease");
  const auto found = world().allocations.find(handle);
  if (found == world().allocations.end() || found->second.is_released) {
    return call.violation("unknown handle, or released before");
  }
  found->second.is_released = true;
  drop_if_unused(handle);
  return kSuccess;
}

EXPORTED Result cuMemMap(DevicePtr first, std::size_t bytes, std::size_t offset, AllocationHandle handle,
                         unsigned long long flags) {
  ENTER("cuMemMap");
  const auto found = world().allocations.find(handle);
  if (found == world().allocations.end() || found->second.is_released)
    return call.violation("unknown handle");
  if (offset != 0 || flags != 0) return call.violation("offset and flags must be 0");
  if (bytes == 0 || !is_granular(bytes, found->second.device) || !is_granular(first, found->second.device))
    return call.violation("address or size not granular");
  if (bytes > found->second.bytes) return call.violation("larger than the allocation");
  if (!is_inside_one_reservation(first, bytes)) return call.violation("not inside one reservation");
  if (overlaps_mapping(first, bytes)) return call.violation("something is mapped there already");
  if (::mmap(pointer(first), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.fd, 0) == MAP_FAILED) {
    return kOutOfMemory;
  }
  world().mappings[first] = {bytes, handle};
  ++found->second.mappings;
  return kSuccess;
}

EXPORTED Result cuMemUnmap(DevicePtr first, std::size_t bytes) {
  ENTER("cuMemUnmap");
  const std::vector<DevicePtr> whole = whole_mappings(first, bytes);
  if (whole.empty()) return call.violation("the range is not made of whole mappings");
  for (const DevicePtr at : whole) {
    const MappingRecord record = world().mappings.at(at);
    make_inaccessible(at, record.bytes);
    world().mappings.erase(at);
    --world().allocations.at(record.handle).mappings;
    drop_if_unused(record.handle);
  }
  return kSuccess;
}

EXPORTED Result cuMemSetAccess(DevicePtr first, std::size_t bytes, const AccessDesc* access,
                               std::size_t count) {
  ENTER("cuMemSetAccess");
  if (count != 1) return call.violation("descriptor");
  if (!is_device(access->location)) return call.violation("location", kInvalidDevice);
  if (access->flags != kAccessReadWrite) return call.violation("only read-write is stood in for");
  const std::vector<DevicePtr> whole = whole_mappings(first, bytes);
  if (whole.empty()) return call.violation("the range is not fully mapped");
  if (::mprotect(pointer(first), bytes, PROT_READ | PROT_WRITE) != 0) return kOutOfMemory;
  return kSuccess;
}

EXPORTED Result cuMemcpyHtoD_v2(DevicePtr to, const void* from, std::size_t bytes) {
  ENTER("cuMemcpyHtoD");
  std::memcpy(pointer(to), from, bytes);
  return kSuccess;
}

EXPORTED Result cuMemcpyDtoH_v2(void* to, DevicePtr from, std::size_t bytes) {
  ENTER("cuMemcpyDtoH");
  std::memcpy(to, pointer(from), bytes);
  return kSuccess;
}

EXPORTED Result cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* status) {
  static const std::map<std::string, std::string> versioned = {
      {"cuMemGetInfo", "cuMemGetInfo_v2"},
      {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"},
      {"cuCtxPushCurrent", "cuCtxPushCurrent_v2"},
      {"cuCtxPopCurrent", "cuCtxPopCurrent_v2"},
  };
  const auto found = versioned.find(name);
  Dl_info self{};
  ::dladdr(reinterpret_cast<void*>(&cuInit), &self);
  void* library = ::dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = library == nullptr ? nullptr
                                 : ::dlsym(library, found == versioned.end() ? name : found->second.c_str());
  if (library != nullptr) ::dlclose(library);
  if (status != nullptr) *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? kNotFound : kSuccess;
}
