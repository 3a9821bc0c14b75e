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
  ExportedMemory export_memory(Address first, Handle handle) override;

 protected:
  HostVmm(bool strict, bool exportable, int discard_advice);
  // Puts under fresh anonymous addresses what unmap() will discard; called before anything is touched.
  virtual void lay(Address base, std::size_t bytes);

 private:
  void populate(Address first, std::size_t bytes);
  void discard(Address first, std::size_t bytes);

  Capabilities capabilities_;
  int discard_advice_;
};

}  // namespace kvcached
