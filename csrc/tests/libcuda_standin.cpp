// A libcuda.so.1 in software: the virtual memory calls over memfd and mmap, strict about the documented
// rules. It runs no kernels. Two devices; memory is real, so that what was mapped can be written and read.
#include "libcuda_standin.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "vmm/cuda_driver.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using namespace kvcached::cuda;

constexpr std::size_t kGranularityBytes = std::size_t{2} << 20;
constexpr int kDevices = 2;

struct Allocation {
  std::size_t bytes;
  int device;
  int fd;
  int handle_types;  // as which it may be exported
  bool is_imported;  // counted where it was created
  bool is_released;
  int mappings;
};

struct MappingRecord {
  std::size_t bytes;
  AllocationHandle handle;
};

struct Injection {
  std::string function;
  long countdown = 0;
  Result code = 0;
  long more = 0;      // calls that fail after the first
  long injected = 0;  // calls that failed on purpose
};

struct World {
  std::mutex mutex;
  bool is_initialised = false;
  std::size_t total_bytes = std::size_t{1} << 30;
  std::size_t held_bytes[kDevices] = {};
  long contexts = 0;
  long violations = 0;
  std::string last_violation;
  AllocationHandle next_handle = 0x1000;
  std::map<AllocationHandle, Allocation> allocations;
  std::map<DevicePtr, MappingRecord> mappings;
  std::map<DevicePtr, std::size_t> reservations;
  std::map<std::string, long> calls;
  long all_calls = 0;
  Injection injection;
};

World& world() {
  static World* const instance = new World;  // callers may outlive static destructors
  return *instance;
}

thread_local std::vector<Context> context_stack;

constexpr std::uintptr_t kFirstContext = 0x100;  // of device 0

std::size_t device_of(Context context) {
  return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(context) - kFirstContext);
}

// Entered first by every call that can fail: counts, injects, and refuses before cuInit.
class Call {
 public:
  explicit Call(const char* function) : guard_(world().mutex), function_(function) {
    World& w = world();
    ++w.calls[function];
    ++w.all_calls;
    Injection& injection = w.injection;
    const bool is_meant =
        injection.countdown > 0 && (injection.function.empty() || injection.function == function);
    if (is_meant && --injection.countdown == 0) {
      verdict_ = injection.code;
      ++injection.injected;
      if (injection.more-- > 0) injection.countdown = 1;
    } else if (!w.is_initialised && std::strcmp(function, "cuInit") != 0) {
      verdict_ = violation("called before cuInit", kNotInitialized);
    }
  }
  Result verdict() const { return verdict_; }
  Result violation(const std::string& rule, Result code = kInvalidValue) {
    ++world().violations;
    world().last_violation = std::string(function_) + ": " + rule;
    return code;
  }

 private:
  std::lock_guard<std::mutex> guard_;
  const char* function_;
  Result verdict_ = kSuccess;
};

#define ENTER(function) \
  Call call(function);  \
  if (call.verdict() != kSuccess) return call.verdict()

void* pointer(DevicePtr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

bool is_granular(std::uint64_t value) { return value % kGranularityBytes == 0; }

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
  if (!it->second.is_imported) world().held_bytes[it->second.device] -= it->second.bytes;
  world().allocations.erase(it);
}

bool make_inaccessible(DevicePtr first, std::size_t bytes) {
  return ::mmap(pointer(first), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != MAP_FAILED;
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
  *value = attribute == kAttributeVmmSupported || attribute == kAttributePosixFdSupported ? 1 : 0;
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
  *total_bytes = world().total_bytes;
  *free_bytes = world().total_bytes - world().held_bytes[device_of(context_stack.back())];
  return kSuccess;
}

EXPORTED Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProp* prop, int option) {
  ENTER("cuMemGetAllocationGranularity");
  if (prop->type != kAllocationPinned || (option != kGranularityMinimum && option != kGranularityRecommended))
    return call.violation("type or option");
  *bytes = kGranularityBytes;
  return kSuccess;
}

EXPORTED Result cuMemAddressReserve(DevicePtr* base, std::size_t bytes, std::size_t alignment, DevicePtr hint,
                                    unsigned long long flags) {
  ENTER("cuMemAddressReserve");
  if (bytes == 0 || !is_granular(bytes) || alignment != 0 || hint != 0 || flags != 0) {
    return call.violation("size not granular, or alignment, hint, flags not 0");
  }
  const std::size_t slack = kGranularityBytes;
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
  if (bytes == 0 || !is_granular(bytes) || flags != 0)
    return call.violation("size not granular or flags not 0");
  if (prop->type != kAllocationPinned || prop->location.type != kLocationDevice)
    return call.violation("prop");
  if (prop->location.id < 0 || prop->location.id >= kDevices) return call.violation("device", kInvalidDevice);
  if (prop->requested_handle_types != kHandleTypeNone && prop->requested_handle_types != kHandleTypePosixFd)
    return call.violation("handle types");
  World& w = world();
  std::size_t& held_bytes = w.held_bytes[prop->location.id];
  if (held_bytes > w.total_bytes || bytes > w.total_bytes - held_bytes) return kOutOfMemory;
  const int fd = ::memfd_create("libcuda-standin", MFD_CLOEXEC);
  if (fd < 0) return kOutOfMemory;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    ::close(fd);
    return kOutOfMemory;
  }
  held_bytes += bytes;
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
  if (bytes == 0 || !is_granular(bytes) || !is_granular(first))
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
  if (count != 1 || access->location.type != kLocationDevice) return call.violation("descriptor");
  if (access->location.id < 0 || access->location.id >= kDevices)
    return call.violation("device", kInvalidDevice);
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

EXPORTED void standin_fail(const char* function, long nth, int code) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  world().injection = {function, nth, code, 0, world().injection.injected};
}

EXPORTED void standin_break(long nth, long count, int code) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  world().injection = {"", nth, code, count - 1, world().injection.injected};
}

EXPORTED void standin_mend() { standin_fail("", 0, kSuccess); }

EXPORTED long standin_calls(const char* function) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  return *function == '\0' ? world().all_calls : world().calls[function];
}

EXPORTED void standin_state(StandinState* state) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  const World& w = world();
  *state = {static_cast<long>(w.allocations.size()),
            static_cast<long>(w.mappings.size()),
            static_cast<long>(w.reservations.size()),
            w.contexts,
            static_cast<long>(w.held_bytes[0] + w.held_bytes[1]),
            w.violations,
            w.injection.injected};
}

EXPORTED const char* standin_last_violation() { return world().last_violation.c_str(); }

EXPORTED void standin_set_total_bytes(long total_bytes) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  world().total_bytes = static_cast<std::size_t>(total_bytes);
}

EXPORTED void standin_forgive() {
  const std::lock_guard<std::mutex> guard(world().mutex);
  world().violations = 0;
}

EXPORTED void standin_reset() {
  const std::lock_guard<std::mutex> guard(world().mutex);
  World& w = world();
  for (const auto& [at, record] : w.mappings) make_inaccessible(at, record.bytes);
  for (const auto& [base, bytes] : w.reservations) ::munmap(pointer(base), bytes);
  for (const auto& entry : w.allocations) ::close(entry.second.fd);
  w.mappings.clear();
  w.reservations.clear();
  w.allocations.clear();
  std::fill(std::begin(w.held_bytes), std::end(w.held_bytes), 0);
  w.contexts = 0;
  w.violations = 0;
}
