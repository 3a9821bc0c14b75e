#pragma once

#include "vmm/host_vmm.hpp"

namespace kvcached {

// Host memory that other processes can map too: a file without a name beneath each reservation. An address's
// offset in its range is its offset in the file, so the whole range stays one memory area however its pages
// come and go. unmap() punches a hole (MADV_REMOVE), which empties the pages for every process that maps
// them.
class MemfdVmm : public HostVmm {
 public:
  // Throws Unavailable before Linux 5.14.
  explicit MemfdVmm(bool strict);

  void free_reservation(Address base, std::size_t bytes) override;
  ExportedMemory export_memory(Address first, Handle handle) override;

 protected:
  void lay(Address base, std::size_t bytes) override;
};

}  // namespace kvcached
