#include "vmm/process.hpp"

#include <atomic>

namespace kvcached {
namespace {
std::atomic<bool> exiting{false};
}

bool process_exiting() noexcept { return exiting.load(std::memory_order_relaxed); }
void mark_process_exiting() noexcept { exiting.store(true, std::memory_order_relaxed); }

}  // namespace kvcached
