#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "arena/arena.hpp"
#include "arena/credit.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

// A bare reservation whose pages the caller maps and unmaps by offset. Not thread-safe.
class VirtualRange {
 public:
  VirtualRange(std::shared_ptr<Vmm> vmm, std::size_t bytes, std::size_t page_bytes,
               std::shared_ptr<LedgerClient> client);
  VirtualRange(const VirtualRange&) = delete;
  VirtualRange& operator=(const VirtualRange&) = delete;
  ~VirtualRange();

  Address base() const { return open_arena().base(); }
  std::size_t bytes() const noexcept { return geometry_.reservation_bytes(); }
  std::size_t page_bytes() const noexcept { return geometry_.page_set_bytes(); }
  std::size_t mapped_bytes() const noexcept { return arena_ ? arena_->mapped_bytes() : 0; }
  bool is_closed() const noexcept { return is_closing_; }

  // Both: all or nothing; offset and size are multiples of the page size, Misuse otherwise, and Misuse where
  // a page is mapped already (map) or not mapped (unmap). map throws OutOfMemory when ledger or device
  // refuse.
  void map(std::size_t offset_bytes, std::size_t bytes);
  void unmap(std::size_t offset_bytes, std::size_t bytes);
  // The memory of the page at `offset_bytes` for another process. Misuse where that is no mapped page,
  // Unavailable where the backend was not made to export. On the host every page of a range lies in one file,
  // at the page's own offset.
  ExportedMemory export_page(std::size_t offset_bytes);
  // Returns memory, credit and addresses; idempotent. Where the driver refuses it throws: call it again.
  void close();

 private:
  Arena& open_arena() const;
  PageRun pages_of(std::size_t offset_bytes, std::size_t bytes, bool mapped) const;
  std::string explain_shortage(std::size_t need_bytes) const;

  Geometry geometry_;
  Credit credit_;
  std::unique_ptr<Arena> arena_;
  bool is_closing_ = false;  // from the first close() on
};

}  // namespace kvcached
