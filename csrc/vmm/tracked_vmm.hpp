#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "vmm/forwarding_vmm.hpp"

namespace kvcached {

// Keeps the books on every object and enforces the contract's preconditions, which backends themselves trust:
// throws Misuse before the inner backend sees a call that breaks one. For tests and for hunting leaks.
class TrackedVmm : public ForwardingVmm {
 public:
  struct Live {
    std::size_t reservations = 0;
    std::size_t pieces = 0;    // created and not released
    std::size_t mappings = 0;  // pieces mapped
    std::size_t mapped_bytes = 0;
  };

  explicit TrackedVmm(std::shared_ptr<Vmm> inner) : ForwardingVmm(std::move(inner)) {}

  Live live() const;

  Address reserve(std::size_t bytes, std::size_t page_bytes) override;
  void free_reservation(Address base, std::size_t bytes) override;
  Handle create(std::size_t bytes) override;
  void release(Handle handle, std::size_t bytes) override;
  void map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override;
  void set_access(Address first, std::size_t bytes) override;
  void unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override;
  ExportedMemory export_memory(Address first, Handle handle) override;

 private:
  struct Mapped {
    std::size_t bytes;
    Handle handle;
  };

  void require_granular(const char* verb, std::size_t value) const;
  bool is_free(Address first, std::size_t bytes) const;

  mutable std::mutex mutex_;  // over the books and the calls beneath them
  std::map<Address, std::size_t> reservations_;
  std::multimap<Handle, std::size_t> pieces_;  // backends without handles give the same token every time
  std::map<Address, Mapped> mappings_;
};

}  // namespace kvcached
