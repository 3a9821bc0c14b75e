#pragma once

#include "vmm/vmm.hpp"

namespace kvcached {

// Host memory as one anonymous range per reservation. Handles weigh nothing: map() commits the memory
// (MADV_POPULATE_WRITE) and unmap() returns it to the kernel (MADV_DONTNEED).
//
// strict: addresses are inaccessible until mapped, so a stray read faults instead of quietly committing
// memory.
class HostVmm : public Vmm {
 public:
  explicit HostVmm(bool strict);

  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Address reserve(std::size_t bytes, std::size_t page_bytes) override;
  void free_reservation(Address base, std::size_t bytes) override;
  Handle create(std::size_t bytes) override;
  void release(Handle handle, std::size_t bytes) override;
  void map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override;
  void set_access(Address first, std::size_t bytes) override;
  void unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override;

 private:
  void populate(Address first, std::size_t bytes);
  void forget(Address first, std::size_t bytes) noexcept;

  Capabilities capabilities_;
};

}  // namespace kvcached
