#include "arena/mapping.hpp"

#include "vmm/error.hpp"

namespace kvcached {

Mapping::~Mapping() {
  if (vmm_ == nullptr) return;
  if (!owner_.may_undo()) {
    piece_.abandon();
    return;
  }
  try {
    const Handle handle = piece_.handle();
    vmm_->unmap(address_, piece_.bytes(), &handle, 1);
  } catch (...) {
    piece_.abandon();  // still mapped: another taker would write into this address
  }
}

std::vector<Mapping> map_run(Vmm& vmm, Address first, std::vector<PhysicalPiece> pieces) {
  std::vector<Mapping> mapped;
  mapped.reserve(pieces.size());
  std::vector<Handle> handles;
  handles.reserve(pieces.size());
  for (const PhysicalPiece& piece : pieces) handles.push_back(piece.handle());

  const std::size_t piece_bytes = pieces.front().bytes();
  try {
    vmm.map(first, piece_bytes, handles.data(), handles.size());
  } catch (const UndoFailed&) {
    for (PhysicalPiece& piece : pieces)
      piece.abandon();  // some may still be mapped: nobody else may have them
    throw;
  }
  Address address = first;
  for (PhysicalPiece& piece : pieces) {
    mapped.emplace_back(&vmm, address, std::move(piece));
    address += piece_bytes;
  }
  vmm.set_access(first, piece_bytes * mapped.size());
  return mapped;
}

}  // namespace kvcached
