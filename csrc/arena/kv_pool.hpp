#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "arena/arena.hpp"
#include "arena/credit.hpp"
#include "arena/geometry.hpp"
#include "arena/slots.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

struct PoolStats {
  std::size_t rows_total = 0;        // rows that can be handed out at all
  std::size_t rows_used = 0;         // handed out now
  std::size_t rows_free_backed = 0;  // can be handed out without mapping anything
  std::size_t rows_backed = 0;       // used + free_backed
  std::size_t rows_obtainable = 0;   // free_backed + what could be backed this instant
  std::size_t rows_attainable = 0;   // the most that could ever be in use at once
  std::size_t mapped_bytes = 0;
  std::uint64_t maps = 0;    // pages mapped since the start
  std::uint64_t unmaps = 0;  // pages unmapped since the start
  std::uint64_t allocs = 0;  // rows handed out since the start
  std::uint64_t frees = 0;   // rows taken back since the start
};

// Growth in three parts, so that the middle one, which takes the time, can run on another thread beside all
// other calls of the pool. One growth is under way at a time.
class Growth {
 public:
  // Maps the pages. When this throws nothing is mapped; the growth is finished all the same.
  void map() { staged_ = arena_->stage(runs_); }

 private:
  friend class KvPool;
  Growth(Arena* arena, PageRuns runs, std::size_t bytes) noexcept
      : arena_(arena), runs_(std::move(runs)), bytes_(bytes) {}

  Arena* arena_;
  PageRuns runs_;
  std::size_t bytes_;
  Arena::Staged staged_;  // empty until mapped
};

// One KV cache: rows over an arena, paid for from a ledger. grow() and trim() move memory, alloc() and free()
// only move rows. Not thread-safe.
//
// Order of credit and memory: claim, then map; unmap and release, then give credit back. So at any instant,
// also that of a crash, the ledger has counted at least what is mapped.
class KvPool {
 public:
  KvPool(std::shared_ptr<Vmm> vmm, const Geometry& geometry, std::shared_ptr<LedgerClient> client,
         PagePolicy policy = PagePolicy::best_fit);
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;
  ~KvPool();

  const Geometry& geometry() const noexcept { return geometry_; }
  Address base() const;
  Address stripe_address(std::size_t stripe) const;

  // Makes at least `rows` backed rows free. False when rows, limit or ledger do not allow it. Throws
  // OutOfMemory when the device does not. Either way nothing has changed.
  bool grow(std::size_t rows);
  // Why grow(rows) says no at this instant: need, held, limit, and who holds the rest.
  std::string explain_refusal(std::size_t rows) const;
  // The first part of backing the `pages` lowest unbacked pages (fewer where fewer are left): their credit is
  // claimed and they are set aside. Nothing when ledger or limit refuse, or no page is left.
  std::optional<Growth> begin_growth(std::size_t pages);
  // The last part, whether or not it mapped: pages become rows, or credit goes back.
  void finish_growth(Growth growth);
  // Hands out `count` rows of backed pages, or none and false.
  bool alloc(std::size_t count, std::int64_t* out);
  void free(const std::int64_t* ids, std::size_t count);
  // Gives back empty pages while at least `keep_rows` backed rows stay free; returns the bytes given back.
  std::size_t trim(std::size_t keep_rows);
  // Takes all rows back and gives back every page that is not pinned.
  void clear();
  // Another model's rows over the same addresses. Pre: no growth is under way. Misuse while rows are in use
  // or where the reservation is too small. An exception leaves the old geometry in force, empty pages
  // possibly given back; if the driver refuses even the way back, the pool is closed.
  void realign(const Geometry& geometry);
  // Returns memory, credit and addresses; idempotent. Where the driver refuses it throws: call it again.
  void close();
  bool is_closed() const noexcept { return is_closing_; }
  // Whether another client was refused memory and still wants it, or lacks some of its floor.
  bool others_want() const { return client() != nullptr && client()->others_want(); }
  // What the ledger asks this pool's client to give back now.
  std::size_t asked_bytes() const {
    return client() == nullptr ? 0 : static_cast<std::size_t>(client()->asked_bytes());
  }
  LedgerClient* client() const noexcept { return credit_.client(); }  // null: no ledger

  std::size_t rows_used() const noexcept { return slots_.rows_used(); }
  std::size_t rows_free_backed() const noexcept { return slots_.rows_free_backed(); }
  std::size_t rows_backed() const noexcept { return slots_.rows_backed(); }
  std::size_t rows_total() const noexcept { return slots_.rows_total(); }
  // What grow(rows) lacks: bytes of pages to be backed; 0 where the pool has not so many rows.
  std::size_t lacking_bytes(std::size_t rows) const;
  std::size_t pages_empty() const noexcept { return slots_.pages_empty(); }
  std::size_t rows_obtainable() const;
  std::size_t rows_attainable() const;
  std::size_t mapped_bytes() const noexcept { return arena_ ? arena_->mapped_bytes() : 0; }
  PoolStats stats() const;
  void publish() const;
  void check_invariants() const;

 private:
  Arena& open_arena() const;
  bool back(PageRuns runs);
  std::optional<Growth> begin(PageRuns runs);
  PageRuns unback(PageRuns runs);
  void exchange_pinned_pages(const Geometry& geometry);
  void restore_pinned_pages();
  void claim_up_to(std::size_t bytes);
  std::string explain_shortage(const std::string& what, std::size_t need_bytes) const;
  void settle_credit();

  Geometry geometry_;
  Credit credit_;                 // for what the arena holds, and for the growth under way
  std::unique_ptr<Arena> arena_;  // null once closed
  SlotAllocator slots_;
  bool is_closing_ = false;       // from the first close() on
  std::size_t growth_bytes_ = 0;  // of the growth under way
  std::uint64_t maps_ = 0, unmaps_ = 0, allocs_ = 0, frees_ = 0;
};

}  // namespace kvcached
