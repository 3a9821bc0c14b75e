#pragma once

#include <memory>
#include <utility>

#include "vmm/process.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

// Owns one range of reserved addresses, and with it a share of the backend.
class Reservation {
 public:
  Reservation() = default;
  Reservation(std::shared_ptr<Vmm> vmm, std::size_t bytes, std::size_t page_bytes)
      : vmm_(std::move(vmm)), base_(vmm_->reserve(bytes, page_bytes)), bytes_(bytes) {}
  Reservation(Reservation&& other) noexcept { swap(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    Reservation taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Reservation() {
    try {
      release();
    } catch (...) {
      // A destructor has nobody to tell; the addresses stay reserved until the process ends.
    }
  }

  // Frees the addresses now. Throws with nothing changed if the backend refuses; does nothing the second
  // time.
  void release() {
    if (!vmm_) return;
    if (owner_.may_undo()) vmm_->free_reservation(base_, bytes_);
    vmm_.reset();
  }

  // Leaks the addresses: for ranges in which something may still be mapped.
  void abandon() noexcept { vmm_.reset(); }

  Address base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }
  const OwnerProcess& owner() const noexcept { return owner_; }

 private:
  void swap(Reservation& other) noexcept {
    std::swap(vmm_, other.vmm_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(owner_, other.owner_);
  }

  std::shared_ptr<Vmm> vmm_;
  Address base_ = 0;
  std::size_t bytes_ = 0;
  OwnerProcess owner_;
};

}  // namespace kvcached
