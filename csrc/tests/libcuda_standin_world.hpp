// What the libcuda stand-in knows: the devices, what is allocated, mapped and reserved, and what shall fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "vmm/cuda_driver.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace standin {

using namespace kvcached::cuda;

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

struct DeviceFacts {
  std::size_t total_bytes = std::size_t{1} << 30;
  std::size_t held_bytes = 0;
  std::size_t granularity_bytes = std::size_t{2} << 20;
  std::map<int, int> attributes = {{kAttributeVmmSupported, 1}, {kAttributePosixFdSupported, 1}};
};

struct World {
  std::mutex mutex;
  bool is_initialised = false;
  DeviceFacts devices[kDevices];
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

World& world();

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

void* pointer(DevicePtr address);
bool make_inaccessible(DevicePtr first, std::size_t bytes);

}  // namespace standin
