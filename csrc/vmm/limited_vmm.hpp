#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "vmm/error.hpp"
#include "vmm/forwarding_vmm.hpp"

namespace kvcached {

// Caps the physical memory taken through it: create() beyond the limit throws OutOfMemory.
class LimitedVmm : public ForwardingVmm {
 public:
  LimitedVmm(std::shared_ptr<Vmm> inner, std::size_t limit_bytes)
      : ForwardingVmm(std::move(inner)), limit_bytes_(limit_bytes) {}

  std::size_t held_bytes() const noexcept { return held_bytes_; }

  Handle create(std::size_t bytes) override {
    std::size_t held_bytes = held_bytes_.load();
    do {
      if (bytes > limit_bytes_ - held_bytes) {
        throw OutOfMemory("create of " + std::to_string(bytes) + " bytes: " + std::to_string(held_bytes) +
                          " held of a limit of " + std::to_string(limit_bytes_));
      }
    } while (!held_bytes_.compare_exchange_weak(held_bytes, held_bytes + bytes));
    try {
      return ForwardingVmm::create(bytes);
    } catch (...) {
      held_bytes_ -= bytes;
      throw;
    }
  }

  void release(Handle handle, std::size_t bytes) override {
    ForwardingVmm::release(handle, bytes);  // memory first, room second
    held_bytes_ -= bytes;
  }

 private:
  std::size_t limit_bytes_;
  std::atomic<std::size_t> held_bytes_{0};
};

}  // namespace kvcached
