#include "vmm/cuda_vmm.hpp"

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

[[noreturn]] void raise(const cuda::Driver& driver, cuda::Result code, const std::string& call) {
  const std::string message = call + " failed: " + driver.explain(code);
  if (code == cuda::kOutOfMemory) throw OutOfMemory(message);
  throw DriverError(message);
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
  int supported = 0;
  const auto code = driver.DeviceGetAttribute(&supported, cuda::kAttributeVmmSupported, device);
  if (code != cuda::kSuccess)
    raise(driver, code, "cuDeviceGetAttribute(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)");
  if (supported == 0) {
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
  if (code != cuda::kSuccess) raise(driver_, code, "cuCtxPushCurrent()");
}

CudaContext::Scope::~Scope() {
  cuda::Context popped = nullptr;
  driver_.CtxPopCurrent(&popped);
}

CudaVmm::CudaVmm(int device)
    : driver_(cuda::driver()),
      device_index_(device),
      device_(find_device(driver_, device)),
      context_(driver_, device_) {
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
  check(driver_.MemAddressFree(base, bytes),
        "cuMemAddressFree(" + hex(base) + ", " + std::to_string(bytes) + ")");
}

Handle CudaVmm::create(std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  const cuda::AllocationProp prop = allocation_prop();
  cuda::AllocationHandle handle = 0;
  const auto code = driver_.MemCreate(&handle, bytes, &prop, 0);
  if (code != cuda::kSuccess) {
    raise(driver_, code,
          "cuMemCreate(" + std::to_string(bytes) + ", device " + std::to_string(device_index_) +
              memory_left() + ")");
  }
  return handle;
}

void CudaVmm::release(Handle handle, std::size_t) {
  const CudaContext::Scope scope(context_);
  check(driver_.MemRelease(handle), "cuMemRelease(" + hex(handle) + ")");
}

void CudaVmm::map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) {
  const CudaContext::Scope scope(context_);
  for (std::size_t i = 0; i < count; ++i) {
    const Address at = first + i * piece_bytes;
    const auto code = driver_.MemMap(at, piece_bytes, 0, handles[i], 0);
    if (code == cuda::kSuccess) continue;
    for (std::size_t undo = i; undo-- > 0;) driver_.MemUnmap(first + undo * piece_bytes, piece_bytes);
    raise(driver_, code,
          "cuMemMap(" + hex(at) + ", " + std::to_string(piece_bytes) + ", 0, " + hex(handles[i]) + ")");
  }
}

void CudaVmm::set_access(Address first, std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  const cuda::AccessDesc access{{cuda::kLocationDevice, device_}, cuda::kAccessReadWrite};
  check(driver_.MemSetAccess(first, bytes, &access, 1),
        "cuMemSetAccess(" + hex(first) + ", " + std::to_string(bytes) + ")");
}

// One call per piece: whether a driver unmaps several mappings in one call is not documented.
void CudaVmm::unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) {
  const CudaContext::Scope scope(context_);
  for (std::size_t i = 0; i < count; ++i) {
    const Address at = first + i * piece_bytes;
    const auto code = driver_.MemUnmap(at, piece_bytes);
    if (code == cuda::kSuccess) continue;
    for (std::size_t undo = 0; undo < i; ++undo) {
      check(driver_.MemMap(first + undo * piece_bytes, piece_bytes, 0, handles[undo], 0),
            "cuMemMap while undoing");
    }
    if (i > 0) set_access(first, i * piece_bytes);
    raise(driver_, code, "cuMemUnmap(" + hex(at) + ", " + std::to_string(piece_bytes) + ")");
  }
}

cuda::AllocationProp CudaVmm::allocation_prop() const noexcept {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.location = {cuda::kLocationDevice, device_};
  return prop;
}

void CudaVmm::check(cuda::Result code, const std::string& call) const {
  if (code != cuda::kSuccess) raise(driver_, code, call);
}

std::string CudaVmm::memory_left() const {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (driver_.MemGetInfo(&free_bytes, &total_bytes) != cuda::kSuccess) return "";
  return ", " + std::to_string(free_bytes) + " of " + std::to_string(total_bytes) + " bytes free";
}

}  // namespace kvcached
