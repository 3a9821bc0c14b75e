// The stand-in's state and its controls.
#include "libcuda_standin_world.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "libcuda_standin.hpp"

namespace standin {

World& world() {
  static World* const instance = new World;  // callers may outlive static destructors
  return *instance;
}

void* pointer(DevicePtr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

bool make_inaccessible(DevicePtr first, std::size_t bytes) {
  return ::mmap(pointer(first), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

}  // namespace standin

using namespace standin;

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
            static_cast<long>(w.devices[0].held_bytes + w.devices[1].held_bytes),
            w.violations,
            w.injection.injected};
}

EXPORTED const char* standin_last_violation() { return world().last_violation.c_str(); }

EXPORTED void standin_set_total_bytes(long total_bytes) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  for (DeviceFacts& device : world().devices) device.total_bytes = static_cast<std::size_t>(total_bytes);
}

EXPORTED void standin_set_granularity(int device, long bytes) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  world().devices[device].granularity_bytes = static_cast<std::size_t>(bytes);
}

EXPORTED void standin_set_attribute(int device, int attribute, int value) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  world().devices[device].attributes[attribute] = value;
}

EXPORTED long standin_held_bytes(int device) {
  const std::lock_guard<std::mutex> guard(world().mutex);
  return static_cast<long>(world().devices[device].held_bytes);
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
  for (DeviceFacts& device : w.devices) device.held_bytes = 0;
  w.contexts = 0;
  w.violations = 0;
}
