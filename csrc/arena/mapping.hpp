#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "pool/page_pool.hpp"
#include "vmm/process.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

// One physical piece mapped at one address. Owns both: destruction unmaps, then gives the piece back.
class Mapping {
 public:
  Mapping(Vmm* vmm, Address address, PhysicalPiece piece) noexcept
      : vmm_(vmm), address_(address), piece_(std::move(piece)) {}
  Mapping(Mapping&& other) noexcept
      : vmm_(std::exchange(other.vmm_, nullptr)), address_(other.address_), piece_(std::move(other.piece_)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

  Handle handle() const noexcept { return piece_.handle(); }
  // Says that the owner has unmapped the address, as part of a longer run; the piece alone is still owned.
  void mark_unmapped() noexcept { vmm_ = nullptr; }
  // Leaks both: for mappings of which it is not known whether they still exist.
  void abandon() noexcept {
    vmm_ = nullptr;
    piece_.abandon();
  }

 private:
  Vmm* vmm_;
  Address address_;
  PhysicalPiece piece_;
  OwnerProcess owner_;
};

// Maps equal pieces one after another from `first` and makes them accessible: all of them or none.
std::vector<Mapping> map_run(Vmm& vmm, Address first, std::vector<PhysicalPiece> pieces);

}  // namespace kvcached
