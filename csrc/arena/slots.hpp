#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "arena/geometry.hpp"
#include "arena/index_set.hpp"
#include "arena/page_run.hpp"
#include "arena/zeroed_array.hpp"

namespace kvcached {

// Where a request goes among backed pages.
enum class PagePolicy {
  // The page with the fewest free rows that holds the whole request, of equals the lowest; else the lowest
  // empty page; else the largest hole. Requests stay together, so pages become empty together.
  best_fit,
  // Every row to the fullest page with a free one, as the paper allocates (arXiv 2505.04021): it
  // leaves no crumbs and tears requests apart.
  most_filled,
};

// Which rows are in use, and which pages are worth backing or giving back. Pure bookkeeping: it maps nothing,
// asks nobody and makes no system call.
//
// A page is unbacked, or staged (being backed), or backed and then one of
//   empty    all usable rows free: can be given back            -> empty_, lowest index first
//   partial  some rows free, or a pinned page with any free row -> partial_, by free count
//   full     no row free                                        -> in no set
class SlotAllocator {
 public:
  explicit SlotAllocator(const Geometry& geometry, PagePolicy policy = PagePolicy::best_fit);

  PagePolicy policy() const noexcept { return policy_; }
  std::size_t rows_total() const noexcept { return geometry_.rows() - geometry_.reserved_rows(); }
  std::size_t rows_used() const noexcept { return rows_backed_ - rows_free_; }
  std::size_t rows_free_backed() const noexcept { return rows_free_; }
  std::size_t rows_backed() const noexcept { return rows_backed_; }
  std::size_t pages_backed() const noexcept { return pages_backed_; }
  std::size_t pages_unbacked() const noexcept { return geometry_.pages() - pages_backed_ - pages_staged_; }
  // Backed pages without a row in use that can be given back.
  std::size_t pages_empty() const noexcept { return pages_empty_; }
  std::size_t rows_staged() const noexcept { return rows_staged_; }
  // Rows that the `pages` lowest unbacked pages would add.
  std::size_t rows_in_unbacked(std::size_t pages) const noexcept;

  // Writes `count` distinct row ids to `out`; false, with nothing changed, when too few backed rows are free.
  bool alloc(std::size_t count, std::int64_t* out) noexcept;
  // Validates the whole batch before it changes anything; Misuse names the first bad id.
  void free(const std::int64_t* ids, std::size_t count);
  // Frees every row.
  void reset() noexcept;

  // Lowest unbacked pages that bring the free backed rows to `rows`; nothing if there are not enough.
  std::optional<PageRuns> plan_back(std::size_t rows) const;
  // The `pages` lowest unbacked pages, or all there are.
  PageRuns plan_pages(std::size_t pages) const;
  // Sets unbacked pages aside while they are being backed; then either of the two below.
  void mark_staged(const PageRuns& runs) noexcept;
  void mark_unstaged(const PageRuns& runs) noexcept;
  void mark_backed(const PageRuns& runs) noexcept;  // pre: staged
  // Highest empty pages that can go while at least `keep_rows` backed rows stay free.
  PageRuns plan_unback(std::size_t keep_rows) const;
  // All backed pages that are not pinned, rows in use or not.
  PageRuns removable_pages() const;
  // Pre: their rows are free.
  void mark_unbacked(const PageRuns& runs) noexcept;

  // Recounts everything; throws Error naming the first disagreement.
  void check_invariants() const;

 private:
  using PageIndex = std::uint32_t;

  enum State : std::uint8_t { kUnbacked, kStaged, kBacked };

  bool is_pinned(std::size_t page) const noexcept { return page < geometry_.pinned_pages(); }
  bool is_empty(std::size_t page) const noexcept {
    return !is_pinned(page) && free_count_[page] == geometry_.usable_rows(page);
  }
  // Puts a backed page into the set its free count calls for, and takes it out again.
  void attach(std::size_t page) noexcept;
  void detach(std::size_t page) noexcept;
  std::size_t choose_page(std::size_t wanted) const noexcept;
  std::int64_t* take(std::size_t page, std::size_t count, std::int64_t* out) noexcept;
  void set_all_free(std::size_t page) noexcept;
  std::size_t free_run(const std::int64_t* ids, std::size_t count) noexcept;
  void retake(const std::int64_t* ids, std::size_t count) noexcept;
  std::size_t partial_key(std::size_t page, std::size_t free_rows) const noexcept {
    return (free_rows << page_bits_) + page;
  }
  std::size_t page_of_key(std::size_t key) const noexcept {
    return key & ((std::size_t{1} << page_bits_) - 1);
  }
  std::size_t lowest_unbacked(std::size_t from) const noexcept;
  [[noreturn]] void reject(std::int64_t id, const std::int64_t* ids, std::size_t position) const;

  Geometry geometry_;
  PagePolicy policy_;
  std::size_t words_per_page_;
  unsigned page_bits_;                    // page indices are below 2^page_bits_
  ZeroedArray<std::uint64_t> free_bits_;  // words_per_page_ words per page, 1 = free
  ZeroedArray<PageIndex> first_word_;     // per page: no free bit in words before this one
  ZeroedArray<PageIndex> free_count_;     // per page: number of free bits
  ZeroedArray<std::uint8_t> state_;       // per page: a State
  IndexSet partial_;                      // by free count, then page: see partial_key
  IndexSet empty_;                        // empty backed pages
  IndexSet returned_;                     // unbacked pages below watermark_
  std::size_t watermark_ = 0;             // no page at or above this was ever backed
  std::size_t pages_backed_ = 0;
  std::size_t pages_empty_ = 0;
  std::size_t pages_staged_ = 0;
  std::size_t rows_staged_ = 0;  // usable rows of staged pages
  std::size_t rows_backed_ = 0;  // usable rows of backed pages
  std::size_t rows_free_ = 0;
};

}  // namespace kvcached
