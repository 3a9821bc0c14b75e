#include "arena/virtual_range.hpp"

#include <string>
#include <utility>

#include "vmm/error.hpp"
#include "vmm/process.hpp"

namespace kvcached {
namespace {

Geometry one_stripe(const Vmm& vmm, std::size_t bytes, std::size_t page_bytes) {
  const std::size_t granularity_bytes = vmm.capabilities().granularity_bytes;
  if (page_bytes == 0 || page_bytes % granularity_bytes != 0) {
    throw Misuse("page size of " + std::to_string(page_bytes) + " bytes: must be a multiple of " +
                 std::to_string(granularity_bytes) + ", the granularity of backend " +
                 vmm.capabilities().kind);
  }
  if (bytes == 0 || bytes % page_bytes != 0) {
    throw Misuse("range of " + std::to_string(bytes) + " bytes: must be a multiple of the page size, " +
                 std::to_string(page_bytes));
  }
  GeometrySpec spec;
  spec.rows = static_cast<std::int64_t>(bytes / page_bytes);
  spec.row_bytes = {static_cast<std::int64_t>(page_bytes)};
  spec.granularity_bytes = static_cast<std::int64_t>(granularity_bytes);
  spec.page_bytes = static_cast<std::int64_t>(page_bytes);
  spec.reserved_rows = 0;
  return Geometry(std::move(spec));
}

}  // namespace

VirtualRange::VirtualRange(std::shared_ptr<Vmm> vmm, std::size_t bytes, std::size_t page_bytes,
                           std::shared_ptr<LedgerClient> client)
    : geometry_(one_stripe(*vmm, bytes, page_bytes)),
      credit_(std::move(client)),
      arena_(std::make_unique<Arena>(std::move(vmm), geometry_)) {}

VirtualRange::~VirtualRange() {
  try {
    close();
  } catch (...) {
    // As for KvPool: the credit stays claimed until the client closes.
  }
}

void VirtualRange::map(std::size_t offset_bytes, std::size_t bytes) {
  Arena& arena = open_arena();
  const PageRun run = pages_of(offset_bytes, bytes, /*mapped=*/false);
  if (run.count == 0) return;
  if (!credit_.try_claim(bytes)) throw OutOfMemory(explain_shortage(bytes));
  const auto settle = [&] {
    arena.release_kept();
    credit_.settle(arena.held_bytes());
  };
  try {
    arena.back({run});
  } catch (const OutOfMemory& error) {
    settle();
    throw OutOfMemory(explain_shortage(bytes) + "; the device refused: " + error.what());
  } catch (...) {
    settle();
    throw;
  }
  settle();
}

void VirtualRange::unmap(std::size_t offset_bytes, std::size_t bytes) {
  Arena& arena = open_arena();
  const PageRun run = pages_of(offset_bytes, bytes, /*mapped=*/true);
  if (run.count == 0) return;
  std::size_t done = 0;
  arena.unback({run}, done);  // a single run: an exception means that nothing has changed
  credit_.settle(arena.held_bytes());
}

ExportedMemory VirtualRange::export_page(std::size_t offset_bytes) {
  Arena& arena = open_arena();
  return arena.export_segment(pages_of(offset_bytes, page_bytes(), /*mapped=*/true).first, 0);
}

void VirtualRange::close() {
  if (!arena_) return;
  is_closing_ = true;
  if (!process_exiting()) arena_->close();
  arena_.reset();
  credit_.close();
}

std::string VirtualRange::explain_shortage(std::size_t need_bytes) const {
  return "mapping needs " + std::to_string(need_bytes) + " bytes, this range holds " +
         std::to_string(mapped_bytes()) + " of " + std::to_string(bytes()) + "; " + credit_.explain();
}

PageRun VirtualRange::pages_of(std::size_t offset_bytes, std::size_t bytes, bool mapped) const {
  const std::size_t page = page_bytes();
  const std::string what = "[" + std::to_string(offset_bytes) + ", " + std::to_string(offset_bytes) + " + " +
                           std::to_string(bytes) + ")";
  if (offset_bytes % page != 0 || bytes % page != 0) {
    throw Misuse(what + " is not made of whole pages of " + std::to_string(page) + " bytes");
  }
  if (offset_bytes > this->bytes() || bytes > this->bytes() - offset_bytes) {
    throw Misuse(what + " lies outside this range of " + std::to_string(this->bytes()) + " bytes");
  }
  const PageRun run{offset_bytes / page, bytes / page};
  for (std::size_t i = run.first; i < run.first + run.count; ++i) {
    if (arena_->is_backed(i) == mapped) continue;
    throw Misuse(what + ": the page at offset " + std::to_string(i * page) +
                 (mapped ? " is not mapped" : " is mapped already"));
  }
  return run;
}

Arena& VirtualRange::open_arena() const {
  if (is_closing_) throw Misuse("this range is closed");
  return *arena_;
}

}  // namespace kvcached
