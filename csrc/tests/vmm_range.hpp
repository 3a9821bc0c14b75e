#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backends.hpp"

namespace backends {

using kvcached::Address;
using kvcached::Handle;
using kvcached::Vmm;

// A reservation of eight pieces, with the bookkeeping that a test would repeat.
class Range {
 public:
  static constexpr std::size_t kPieces = 8;

  explicit Range(const Kit& kit) : Range(kit.make()) {}
  explicit Range(std::shared_ptr<Vmm> vmm)
      : vmm_(std::move(vmm)),
        piece_bytes_(vmm_->capabilities().default_page_bytes),
        base_(vmm_->reserve(kPieces * piece_bytes_, piece_bytes_)) {}
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { vmm_->free_reservation(base_, kPieces * piece_bytes_); }

  Vmm& vmm() { return *vmm_; }
  std::size_t piece_bytes() const { return piece_bytes_; }
  Address at(std::size_t piece) const { return base_ + piece * piece_bytes_; }
  char* data(std::size_t piece) const { return reinterpret_cast<char*>(at(piece)); }

  std::vector<Handle> create(std::size_t count) {
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < count; ++i) handles.push_back(vmm_->create(piece_bytes_));
    return handles;
  }
  void map(std::size_t first, const std::vector<Handle>& handles) {
    vmm_->map(at(first), piece_bytes_, handles.data(), handles.size());
    vmm_->set_access(at(first), piece_bytes_ * handles.size());
  }
  void unmap(std::size_t first, const std::vector<Handle>& handles) {
    vmm_->unmap(at(first), piece_bytes_, handles.data(), handles.size());
  }
  void release(const std::vector<Handle>& handles) {
    for (const Handle handle : handles) vmm_->release(handle, piece_bytes_);
  }

 private:
  std::shared_ptr<Vmm> vmm_;
  std::size_t piece_bytes_;
  Address base_;
};

}  // namespace backends
