#include "vmm/cuda_vmm.hpp"

#include <fcntl.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "vmm/error.hpp"

namespace kvcached {
namespace {

constexpr std::size_t kDefaultPageBytes = std::size_t{2} << 20;

std::string hex(std::uint64_t value) {
  std::ostringstream out;
  out << "0x" << std::hex << value;
  return out.str();
}

[[noreturn]] void raise(const cuda::Driver& driver, cuda::Result code, const std::string& call,
                        const std::string& circumstances = "") {
  const std::string message = call + " failed: " + driver.explain(code) + circumstances;
  if (code == cuda::kOutOfMemory) throw OutOfMemory(message);
  throw DriverError(message);
}

[[noreturn]] void raise_undo_failed(const cuda::Driver& driver, const std::string& call, cuda::Result code,
                                    const std::string& undo, cuda::Result undo_code) {
  throw UndoFailed(call + " failed: " + driver.explain(code) + "; undoing what came before it, " + undo +
                   " failed too: " + driver.explain(undo_code));
}

std::string describe_range(const char* name, Address first, std::size_t bytes) {
  return std::string(name) + "(" + hex(first) + ", " + std::to_string(bytes) + ")";
}

std::string describe_map(Address at, std::size_t bytes, Handle handle) {
  return "cuMemMap(" + hex(at) + ", " + std::to_string(bytes) + ", 0, " + hex(handle) + ")";
}

bool has_attribute(const cuda::Driver& driver, cuda::Device device, int attribute, const char* name) {
  int value = 0;
  const auto code = driver.DeviceGetAttribute(&value, attribute, device);
  if (code != cuda::kSuccess) {
    raise(driver, code, std::string("cuDeviceGetAttribute(") + name + ", " + std::to_string(device) + ")");
  }
  return value != 0;
}

cuda::Device find_device(const cuda::Driver& driver, int index) {
  int count = 0;
  if (const auto code = driver.DeviceGetCount(&count); code != cuda::kSuccess) {
    raise(driver, code, "cuDeviceGetCount()");
  }
  if (index < 0 || index >= count) {
    throw Unavailable("CUDA device " + std::to_string(index) + " does not exist: there are " +
                      std::to_string(count));
  }
  cuda::Device device = 0;
  if (const auto code = driver.DeviceGet(&device, index); code != cuda::kSuccess) {
    raise(driver, code, "cuDeviceGet(" + std::to_string(index) + ")");
  }
  if (!has_attribute(driver, device, cuda::kAttributeVmmSupported, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED")) {
    throw Unavailable("CUDA device " + std::to_string(index) + " does not support virtual memory management");
  }
  return device;
}

}  // namespace

CudaContext::CudaContext(const cuda::Driver& driver, cuda::Device device) : driver_(driver), device_(device) {
  const auto code = driver_.PrimaryCtxRetain(&context_, device_);
  if (code != cuda::kSuccess)
    raise(driver_, code, "cuDevicePrimaryCtxRetain(" + std::to_string(device_) + ")");
}

CudaContext::~CudaContext() {
  if (owner_.may_undo()) driver_.PrimaryCtxRelease(device_);
}

CudaContext::Scope::Scope(const CudaContext& context) : driver_(context.driver_) {
  const auto code = driver_.CtxPushCurrent(context.context_);
  if (code != cuda::kSuccess) raise(driver_, code, "cuCtxPushCurrent(primary context)");
}

CudaContext::Scope::~Scope() {
  cuda::Context popped = nullptr;
  driver_.CtxPopCurrent(&popped);
}

CudaVmm::CudaVmm(int device, bool exportable)
    : driver_(cuda::driver()),
      device_index_(device),
      device_(find_device(driver_, device)),
      context_(driver_, device_) {
  if (exportable && !has_attribute(driver_, device_, cuda::kAttributePosixFdSupported,
                                   "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED")) {
    throw Unavailable("CUDA device " + std::to_string(device) + " cannot export memory as file descriptors");
  }
  capabilities_.exportable = exportable;
  const CudaContext::Scope scope(context_);
  const cuda::AllocationProp prop = allocation_prop();
  std::size_t granularity_bytes = 0;
  check(driver_.MemGetAllocationGranularity(&granularity_bytes, &prop, cuda::kGranularityMinimum),
        "cuMemGetAllocationGranularity(device " + std::to_string(device) + ", minimum)");
  capabilities_.kind = "cuda";
  capabilities_.device = device;
  capabilities_.granularity_bytes = granularity_bytes;
  capabilities_.default_page_bytes =
      (kDefaultPageBytes + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
  capabilities_.strict = true;
  capabilities_.recycles = true;
}

Address CudaVmm::reserve(std::size_t bytes, std::size_t) {
  const CudaContext::Scope scope(context_);
  cuda::DevicePtr base = 0;
  check(driver_.MemAddressReserve(&base, bytes, 0, 0, 0),
        "cuMemAddressReserve(" + std::to_string(bytes) + ")");
  return static_cast<Address>(base);
}

void CudaVmm::free_reservation(Address base, std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  check(driver_.MemAddressFree(base, bytes), describe_range("cuMemAddressFree", base, bytes));
}

Handle CudaVmm::create(std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  const cuda::AllocationProp prop = allocation_prop();
  cuda::AllocationHandle handle = 0;
  const auto code = driver_.MemCreate(&handle, bytes, &prop, 0);
  if (code != cuda::kSuccess) {
    raise(driver_, code,
          "cuMemCreate(" + std::to_string(bytes) + ", device " + std::to_string(device_index_) + ")",
          memory_left());
  }
  held_bytes_ += bytes;
  return handle;
}

void CudaVmm::release(Handle handle, std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  check(driver_.MemRelease(handle), "cuMemRelease(" + hex(handle) + ")");
  held_bytes_ -= bytes;
}

void CudaVmm::map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) {
  const CudaContext::Scope scope(context_);
  for (std::size_t i = 0; i < count; ++i) {
    const Address at = first + i * piece_bytes;
    const auto code = driver_.MemMap(at, piece_bytes, 0, handles[i], 0);
    if (code == cuda::kSuccess) continue;
    const std::string call = describe_map(at, piece_bytes, handles[i]);
    for (std::size_t undo = i; undo-- > 0;) {
      const Address mapped = first + undo * piece_bytes;
      const auto undo_code = driver_.MemUnmap(mapped, piece_bytes);
      if (undo_code == cuda::kSuccess) continue;
      raise_undo_failed(driver_, call, code, describe_range("cuMemUnmap", mapped, piece_bytes), undo_code);
    }
    raise(driver_, code, call);
  }
}

void CudaVmm::set_access(Address first, std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  check(try_set_access(first, bytes), describe_range("cuMemSetAccess", first, bytes));
}

cuda::Result CudaVmm::try_set_access(Address first, std::size_t bytes) const {
  const cuda::AccessDesc access{{cuda::kLocationDevice, device_}, cuda::kAccessReadWrite};
  return driver_.MemSetAccess(first, bytes, &access, 1);
}

// One call per piece: whether a driver unmaps several mappings in one call is not documented.
void CudaVmm::unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) {
  const CudaContext::Scope scope(context_);
  for (std::size_t i = 0; i < count; ++i) {
    const Address at = first + i * piece_bytes;
    const auto code = driver_.MemUnmap(at, piece_bytes);
    if (code == cuda::kSuccess) continue;
    const std::string call = describe_range("cuMemUnmap", at, piece_bytes);
    for (std::size_t undo = 0; undo < i; ++undo) {
      const Address unmapped = first + undo * piece_bytes;
      const auto undo_code = driver_.MemMap(unmapped, piece_bytes, 0, handles[undo], 0);
      if (undo_code == cuda::kSuccess) continue;
      raise_undo_failed(driver_, call, code, describe_map(unmapped, piece_bytes, handles[undo]), undo_code);
    }
    if (i > 0) {
      const auto undo_code = try_set_access(first, i * piece_bytes);
      if (undo_code != cuda::kSuccess) {
        raise_undo_failed(driver_, call, code, describe_range("cuMemSetAccess", first, i * piece_bytes),
                          undo_code);
      }
    }
    raise(driver_, code, call);
  }
}

ExportedMemory CudaVmm::export_memory(Address, Handle handle) {
  if (!capabilities_.exportable) {
    throw Unavailable(
        "this device memory was not made to be exported: ask for exportable memory at creation");
  }
  const CudaContext::Scope scope(context_);
  int fd = -1;
  check(driver_.MemExportToShareableHandle(&fd, handle, cuda::kHandleTypePosixFd, 0),
        "cuMemExportToShareableHandle(" + hex(handle) + ", POSIX_FILE_DESCRIPTOR)");
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return {FileDescriptor(fd), 0};
}

cuda::AllocationProp CudaVmm::allocation_prop() const noexcept {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.requested_handle_types = capabilities_.exportable ? cuda::kHandleTypePosixFd : cuda::kHandleTypeNone;
  prop.location = {cuda::kLocationDevice, device_};
  return prop;
}

void CudaVmm::check(cuda::Result code, const std::string& call) const {
  if (code != cuda::kSuccess) raise(driver_, code, call);
}

std::string CudaVmm::memory_left() const {
  const std::string held = "; held here " + std::to_string(held_bytes_.load());
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (driver_.MemGetInfo(&free_bytes, &total_bytes) != cuda::kSuccess) return held + " bytes";
  const std::size_t used_bytes = total_bytes - std::min(total_bytes, free_bytes);
  const std::size_t others_bytes = used_bytes - std::min(used_bytes, held_bytes_.load());
  return held + ", by others " + std::to_string(others_bytes) + ", free " + std::to_string(free_bytes) +
         " of " + std::to_string(total_bytes) + " bytes";
}

}  // namespace kvcached
