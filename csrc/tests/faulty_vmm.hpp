#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "vmm/error.hpp"
#include "vmm/forwarding_vmm.hpp"

namespace backends {

// Fails the n-th call of any verb, before it has an effect, with the error that verb may honestly have.
class FaultyVmm : public kvcached::ForwardingVmm {
 public:
  explicit FaultyVmm(std::shared_ptr<kvcached::Vmm> inner) : ForwardingVmm(std::move(inner)) {}

  void fail_at(long nth) { countdown_ = nth; }
  void never_fail() { countdown_ = 0; }
  bool has_failed() const { return has_failed_; }

  kvcached::Address reserve(std::size_t bytes, std::size_t page_bytes) override {
    stumble<kvcached::OutOfMemory>("reserve");
    return ForwardingVmm::reserve(bytes, page_bytes);
  }
  void free_reservation(kvcached::Address base, std::size_t bytes) override {
    stumble<kvcached::DriverError>("free_reservation");
    ForwardingVmm::free_reservation(base, bytes);
  }
  kvcached::Handle create(std::size_t bytes) override {
    stumble<kvcached::OutOfMemory>("create");
    return ForwardingVmm::create(bytes);
  }
  void release(kvcached::Handle handle, std::size_t bytes) override {
    if (capabilities().recycles) stumble<kvcached::DriverError>("release");
    ForwardingVmm::release(handle, bytes);
  }
  void map(kvcached::Address first, std::size_t piece_bytes, const kvcached::Handle* handles,
           std::size_t count) override {
    stumble<kvcached::OutOfMemory>("map");
    ForwardingVmm::map(first, piece_bytes, handles, count);
  }
  void set_access(kvcached::Address first, std::size_t bytes) override {
    stumble<kvcached::DriverError>("set_access");
    ForwardingVmm::set_access(first, bytes);
  }
  void unmap(kvcached::Address first, std::size_t piece_bytes, const kvcached::Handle* handles,
             std::size_t count) override {
    stumble<kvcached::DriverError>("unmap");
    ForwardingVmm::unmap(first, piece_bytes, handles, count);
  }
  kvcached::ExportedMemory export_memory(kvcached::Address first, kvcached::Handle handle) override {
    stumble<kvcached::DriverError>("export_memory");
    return ForwardingVmm::export_memory(first, handle);
  }

 private:
  template <typename Error>
  void stumble(const char* verb) {
    if (countdown_ <= 0 || --countdown_ != 0) return;
    has_failed_ = true;
    throw Error(std::string("injected into ") + verb);
  }

  std::atomic<long> countdown_{0};  // 0: never
  std::atomic<bool> has_failed_{false};
};

}  // namespace backends
