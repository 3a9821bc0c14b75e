#pragma once

#include <memory>
#include <utility>

#include "vmm/vmm.hpp"

namespace kvcached {

// Passes everything on. Adaptors override the verbs that they care about.
class ForwardingVmm : public Vmm {
 public:
  explicit ForwardingVmm(std::shared_ptr<Vmm> inner) : inner_(std::move(inner)) {}

  const Capabilities& capabilities() const noexcept override { return inner_->capabilities(); }
  Address reserve(std::size_t bytes, std::size_t page_bytes) override {
    return inner_->reserve(bytes, page_bytes);
  }
  void free_reservation(Address base, std::size_t bytes) override { inner_->free_reservation(base, bytes); }
  Handle create(std::size_t bytes) override { return inner_->create(bytes); }
  void release(Handle handle, std::size_t bytes) override { inner_->release(handle, bytes); }
  void map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override {
    inner_->map(first, piece_bytes, handles, count);
  }
  void set_access(Address first, std::size_t bytes) override { inner_->set_access(first, bytes); }
  void unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override {
    inner_->unmap(first, piece_bytes, handles, count);
  }
  ExportedMemory export_memory(Address first, Handle handle) override {
    return inner_->export_memory(first, handle);
  }

 private:
  std::shared_ptr<Vmm> inner_;
};

}  // namespace kvcached
