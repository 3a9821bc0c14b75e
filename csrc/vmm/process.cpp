#include "vmm/process.hpp"

#include <pthread.h>

#include <atomic>

#include "vmm/error.hpp"

namespace kvcached {
namespace {
std::atomic<bool> exiting{false};
std::atomic<std::uint64_t> depth{0};
[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++depth; });
}  // namespace

bool process_exiting() noexcept { return exiting.load(std::memory_order_relaxed); }
void mark_process_exiting() noexcept { exiting.store(true, std::memory_order_relaxed); }

std::uint64_t fork_depth() noexcept { return depth.load(std::memory_order_relaxed); }

void OwnerProcess::require_current() const {
  if (is_current()) return;
  throw Misuse("this memory belongs to the process that reserved it; a forked child must make its own pool");
}

}  // namespace kvcached
