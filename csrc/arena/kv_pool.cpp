#include "arena/kv_pool.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "vmm/error.hpp"
#include "vmm/process.hpp"

namespace kvcached {
namespace {

PageRuns pinned_run(const Geometry& geometry) {
  if (geometry.pinned_pages() == 0) return {};
  return {{0, geometry.pinned_pages()}};
}

}  // namespace

KvPool::KvPool(std::shared_ptr<Vmm> vmm, const Geometry& geometry, std::shared_ptr<LedgerClient> client,
               PagePolicy policy)
    : geometry_(geometry),
      credit_(std::move(client)),
      arena_(std::make_unique<Arena>(std::move(vmm), geometry_)),
      slots_(geometry_, policy) {
  if (back(pinned_run(geometry_))) return;
  throw OutOfMemory(explain_shortage("backing the reserved rows of a new pool", geometry_.pinned_bytes()));
}

KvPool::~KvPool() {
  try {
    close();
  } catch (...) {
    // Nobody is left to tell. The credit stays claimed until the client closes, as the memory may be held.
  }
}

Address KvPool::base() const { return open_arena().base(); }

Address KvPool::stripe_address(std::size_t stripe) const {
  if (stripe >= geometry_.stripes()) {
    throw Misuse("stripe " + std::to_string(stripe) + " does not exist: this pool has " +
                 std::to_string(geometry_.stripes()));
  }
  return open_arena().base() + geometry_.stripe_offset_bytes(stripe);
}

bool KvPool::grow(std::size_t rows) {
  open_arena();
  if (slots_.rows_free_backed() >= rows) return true;
  if (rows > slots_.rows_total()) return false;
  const auto runs = slots_.plan_back(rows);
  return runs && back(std::move(*runs));
}

bool KvPool::back(PageRuns runs) {
  if (runs.empty()) return true;
  auto growth = begin(std::move(runs));
  if (!growth) return false;
  const std::size_t need_bytes = growth->bytes_;
  try {
    growth->map();
  } catch (const OutOfMemory& error) {
    finish_growth(std::move(*growth));
    const std::size_t pages = need_bytes / geometry_.page_set_bytes();
    throw OutOfMemory(explain_shortage("backing " + std::to_string(pages) + " pages", need_bytes) +
                      "; the device refused: " + error.what());
  } catch (...) {
    finish_growth(std::move(*growth));
    throw;
  }
  finish_growth(std::move(*growth));
  return true;
}

std::optional<Growth> KvPool::begin_growth(std::size_t pages) {
  open_arena();
  PageRuns runs = slots_.plan_pages(pages);
  if (runs.empty()) return std::nullopt;
  return begin(std::move(runs));
}

std::optional<Growth> KvPool::begin(PageRuns runs) {
  const std::size_t pages = count_pages(runs);
  const std::size_t need_bytes = pages * geometry_.page_set_bytes();
  arena_->make_room(pages);
  if (!credit_.try_claim(need_bytes)) return std::nullopt;
  growth_bytes_ += need_bytes;
  slots_.mark_staged(runs);
  return Growth(arena_.get(), std::move(runs), need_bytes);
}

void KvPool::finish_growth(Growth growth) {
  growth_bytes_ -= growth.bytes_;
  if (growth.staged_.empty()) {
    arena_->release_kept();
    slots_.mark_unstaged(growth.runs_);
  } else {
    arena_->adopt(std::move(growth.staged_));
    slots_.mark_backed(growth.runs_);
    maps_ += count_pages(growth.runs_);
  }
  settle_credit();
}

std::size_t KvPool::lacking_bytes(std::size_t rows) const {
  open_arena();
  if (rows > slots_.rows_total() || rows <= slots_.rows_free_backed()) return 0;
  const auto runs = slots_.plan_back(rows);
  return runs ? count_pages(*runs) * geometry_.page_set_bytes() : 0;
}

std::string KvPool::explain_refusal(std::size_t rows) const {
  open_arena();
  const auto runs = rows > slots_.rows_total() ? std::nullopt : slots_.plan_back(rows);
  if (!runs) {
    return std::to_string(rows) + " free rows are more than this pool of " + std::to_string(rows_total()) +
           " rows has left";
  }
  const std::size_t pages = count_pages(*runs);
  return explain_shortage("backing " + std::to_string(pages) + " pages", pages * geometry_.page_set_bytes());
}

std::string KvPool::explain_shortage(const std::string& what, std::size_t need_bytes) const {
  return what + " needs " + std::to_string(need_bytes) + " bytes, this pool holds " +
         std::to_string(mapped_bytes()) + "; " + credit_.explain();
}

void KvPool::settle_credit() { credit_.settle(arena_->held_bytes() + growth_bytes_); }

bool KvPool::alloc(std::size_t count, std::int64_t* out) {
  if (is_closing_) open_arena();
  if (!slots_.alloc(count, out)) return false;
  allocs_ += count;
  return true;
}

void KvPool::free(const std::int64_t* ids, std::size_t count) {
  open_arena();
  slots_.free(ids, count);
  frees_ += count;
}

std::size_t KvPool::trim(std::size_t keep_rows) {
  Arena& arena = open_arena();
  const std::size_t before_bytes = arena.kept_bytes();
  const PageRuns gone = unback(slots_.plan_unback(keep_rows));
  slots_.mark_unbacked(gone);
  settle_credit();
  // Not the change of held_bytes(): a growth may add to that meanwhile.
  return before_bytes + count_pages(gone) * geometry_.page_set_bytes() - arena.kept_bytes();
}

// Memory before rows: if the driver refuses, all rows are still handed out.
void KvPool::clear() {
  open_arena();
  const PageRuns gone = unback(slots_.removable_pages());
  frees_ += slots_.rows_used();
  slots_.reset();
  slots_.mark_unbacked(gone);
  settle_credit();
}

void KvPool::realign(const Geometry& geometry) {
  Arena& arena = open_arena();
  if (slots_.rows_used() != 0) {
    throw Misuse("realign: " + std::to_string(slots_.rows_used()) + " rows are in use; free them first");
  }
  arena.require_room_for(geometry);
  SlotAllocator slots(geometry, slots_.policy());
  trim(0);
  if (slots_.pages_backed() != geometry_.pinned_pages()) {
    throw DriverError("realign: the driver refused to unmap empty pages; try again");
  }
  exchange_pinned_pages(geometry);
  geometry_ = geometry;
  slots_ = std::move(slots);
  slots_.mark_staged(pinned_run(geometry_));
  slots_.mark_backed(pinned_run(geometry_));
}

// The pages of the reserved rows in the new geometry instead of those in the old. Credit for the larger of
// both is held until one of them is in place, so that nobody else can take it meanwhile; so is the memory,
// where pieces of the old fit the new.
void KvPool::exchange_pinned_pages(const Geometry& geometry) {
  bool is_unmapped = false;
  try {
    claim_up_to(geometry.pinned_bytes());
    std::size_t done = 0;
    arena_->unmap(pinned_run(geometry_), done);  // a single run: an exception means that nothing has changed
    is_unmapped = true;
    const std::size_t piece_bytes = geometry.uniform_segment_bytes();
    const bool recycles = piece_bytes != 0 && piece_bytes == geometry_.uniform_segment_bytes();
    if (!recycles) arena_->release_kept();
    // The driver may have refused a release.
    claim_up_to(arena_->held_bytes() + geometry.pinned_bytes() -
                (recycles ? std::min(geometry.pinned_bytes(), geometry_.pinned_bytes()) : 0));
    arena_->realign(geometry);
    arena_->back(pinned_run(geometry));
    arena_->release_kept();
  } catch (...) {
    if (is_unmapped) restore_pinned_pages();
    settle_credit();
    throw;
  }
  unmaps_ += geometry_.pinned_pages();
  maps_ += geometry.pinned_pages();
  settle_credit();
}

void KvPool::claim_up_to(std::size_t bytes) {
  if (credit_.bytes() >= bytes || credit_.try_claim(bytes - credit_.bytes())) return;
  throw OutOfMemory(explain_shortage("realigning the reserved rows", bytes));
}

void KvPool::restore_pinned_pages() {
  arena_->realign(geometry_);
  try {
    arena_->back(pinned_run(geometry_));
    arena_->release_kept();
  } catch (...) {
    close();
    throw;
  }
}

// Unmaps the runs and returns those that are gone. A refusal half-way is no error: what was given back is
// given back, and the next trim tries the rest. Throws only if nothing has changed.
PageRuns KvPool::unback(PageRuns runs) {
  std::size_t done = 0;
  try {
    arena_->unback(runs, done);
  } catch (...) {
    if (done == 0) throw;
  }
  runs.resize(done);
  unmaps_ += count_pages(runs);
  return runs;
}

void KvPool::close() {
  if (!arena_) return;
  is_closing_ = true;
  if (!process_exiting()) arena_->close();
  arena_.reset();
  credit_.close();
}

std::size_t KvPool::rows_obtainable() const {
  std::size_t pages = slots_.pages_unbacked();
  if (LedgerClient* const client = credit_.client()) {
    const auto bytes = static_cast<std::size_t>(client->obtainable_bytes());
    pages = std::min(pages, bytes / geometry_.page_set_bytes());
  }
  return slots_.rows_free_backed() + slots_.rows_staged() + slots_.rows_in_unbacked(pages);
}

std::size_t KvPool::rows_attainable() const {
  LedgerClient* const client = credit_.client();
  if (client == nullptr) return slots_.rows_total();
  // What this client holds elsewhere (weights, say) is not attainable here.
  const auto elsewhere_bytes =
      std::max<std::int64_t>(0, client->used_bytes() - static_cast<std::int64_t>(credit_.bytes()));
  const auto bytes = std::max<std::int64_t>(0, client->attainable_bytes() - elsewhere_bytes);
  const std::size_t pages = static_cast<std::size_t>(bytes) / geometry_.page_set_bytes();
  if (pages >= geometry_.pages()) return slots_.rows_total();
  const std::size_t rows = pages * geometry_.rows_per_page();
  return rows > geometry_.reserved_rows() ? rows - geometry_.reserved_rows() : 0;
}

PoolStats KvPool::stats() const {
  open_arena();
  PoolStats stats;
  stats.rows_total = rows_total();
  stats.rows_used = rows_used();
  stats.rows_free_backed = rows_free_backed();
  stats.rows_backed = rows_backed();
  stats.rows_obtainable = rows_obtainable();
  stats.rows_attainable = rows_attainable();
  stats.mapped_bytes = mapped_bytes();
  stats.maps = maps_;
  stats.unmaps = unmaps_;
  stats.allocs = allocs_;
  stats.frees = frees_;
  return stats;
}

void KvPool::publish() const {
  const Arena& arena = open_arena();
  if (credit_.client() == nullptr) return;
  credit_.client()->publish({arena.base(), geometry_.reservation_bytes(), rows_used(), rows_backed()});
}

void KvPool::check_invariants() const {
  const Arena& arena = open_arena();
  slots_.check_invariants();
  if (arena.backed_pages() != slots_.pages_backed()) {
    throw Error("pool: " + std::to_string(arena.backed_pages()) + " pages are mapped, but " +
                std::to_string(slots_.pages_backed()) + " count as backed");
  }
  if (credit_.client() != nullptr && growth_bytes_ == 0 && credit_.bytes() != arena.held_bytes()) {
    throw Error("pool: holds " + std::to_string(arena.held_bytes()) + " bytes against a credit of " +
                std::to_string(credit_.bytes()));
  }
}

Arena& KvPool::open_arena() const {
  if (is_closing_) throw Misuse("this pool is closed");
  return *arena_;
}

}  // namespace kvcached
