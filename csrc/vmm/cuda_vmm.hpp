#pragma once

#include <atomic>

#include "vmm/cuda_driver.hpp"
#include "vmm/process.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

// Holds the device's primary context, the one that torch uses too.
class CudaContext {
 public:
  CudaContext(const cuda::Driver& driver, cuda::Device device);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;
  ~CudaContext();

  // Makes the context current for a scope, whatever was current before.
  class Scope {
   public:
    explicit Scope(const CudaContext& context);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    const cuda::Driver& driver_;
  };

 private:
  const cuda::Driver& driver_;
  cuda::Device device_;
  cuda::Context context_ = nullptr;
  OwnerProcess owner_;
};

// Memory of one CUDA device through the driver's virtual memory calls. Handles hold physical memory from
// create to release. Device facts are asked, never assumed.
class CudaVmm : public Vmm {
 public:
  // exportable: physical memory is made so that other processes can map it. Throws Unavailable without a
  // usable driver or device, or where the device cannot export.
  explicit CudaVmm(int device, bool exportable = false);

  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Address reserve(std::size_t bytes, std::size_t page_bytes) override;
  void free_reservation(Address base, std::size_t bytes) override;
  Handle create(std::size_t bytes) override;
  void release(Handle handle, std::size_t bytes) override;
  void map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override;
  void set_access(Address first, std::size_t bytes) override;
  void unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override;
  ExportedMemory export_memory(Address first, Handle handle) override;

 private:
  cuda::AllocationProp allocation_prop() const noexcept;
  cuda::Result try_set_access(Address first, std::size_t bytes) const;
  void check(cuda::Result code, const std::string& call) const;
  std::string memory_left() const;

  const cuda::Driver& driver_;
  int device_index_;
  cuda::Device device_;
  CudaContext context_;
  Capabilities capabilities_;
  std::atomic<std::size_t> held_bytes_{0};  // created and not released
};

}  // namespace kvcached
