#include "arena/slots.hpp"

#include <algorithm>
#include <string>

#include "arena/bits.hpp"
#include "vmm/error.hpp"

namespace kvcached {
namespace {

using bits::kWordBits;

unsigned bits_for(std::size_t values) {
  unsigned bits = 0;
  while (values > std::size_t{1} << bits) ++bits;
  return bits;
}

}  // namespace

SlotAllocator::SlotAllocator(const Geometry& geometry, PagePolicy policy)
    : geometry_(geometry),
      policy_(policy),
      words_per_page_((geometry.rows_per_page() + kWordBits - 1) / kWordBits),
      page_bits_(bits_for(geometry.pages())),
      free_bits_(geometry.pages() * words_per_page_),
      first_word_(geometry.pages()),
      free_count_(geometry.pages()),
      state_(geometry.pages()),
      partial_(partial_key(0, geometry.rows_per_page() + 1)),
      empty_(geometry.pages()),
      returned_(geometry.pages()) {}

std::size_t SlotAllocator::rows_in_unbacked(std::size_t pages) const noexcept {
  const std::size_t unbacked = pages_unbacked();
  if (pages >= unbacked) return rows_total() - rows_backed_ - rows_staged_;
  // All pages but the pinned and the last have rows_per_page rows; pinned ones are backed from the start, and
  // the last is the highest, so it is only reached when every unbacked page is taken.
  return pages * geometry_.rows_per_page();
}

bool SlotAllocator::alloc(std::size_t count, std::int64_t* out) noexcept {
  if (count > rows_free_) return false;
  std::size_t left = count;
  while (left > 0) {
    const std::size_t page = choose_page(left);
    const std::size_t taken = std::min<std::size_t>(left, free_count_[page]);
    detach(page);
    out = take(page, taken, out);
    attach(page);
    left -= taken;
  }
  rows_free_ -= count;
  return true;
}

// Best fit keeps a request on one page and leaves no crumbs; then the lowest empty page, so that high pages
// stay free to go; only then is a request spread over what is left, largest hole first.
std::size_t SlotAllocator::choose_page(std::size_t wanted) const noexcept {
  const std::size_t fitting = policy_ == PagePolicy::best_fit ? wanted : 1;
  if (fitting <= geometry_.rows_per_page()) {
    const std::size_t key = partial_.next(partial_key(0, fitting));
    if (key != IndexSet::kNone) return page_of_key(key);
  }
  const std::size_t page = empty_.next(0);
  if (page != IndexSet::kNone) return page;
  return page_of_key(partial_.previous(IndexSet::kNone));
}

std::int64_t* SlotAllocator::take(std::size_t page, std::size_t count, std::int64_t* out) noexcept {
  std::uint64_t* const words = &free_bits_[page * words_per_page_];
  std::size_t at = first_word_[page];
  free_count_[page] -= static_cast<PageIndex>(count);
  while (count > 0) {
    std::uint64_t word = words[at];
    const auto row = static_cast<std::int64_t>(page * geometry_.rows_per_page() + at * kWordBits);
    if (word == ~std::uint64_t{0} && count >= kWordBits) {
      for (std::size_t i = 0; i < kWordBits; ++i) *out++ = row + static_cast<std::int64_t>(i);
      count -= kWordBits;
      word = 0;
    }
    for (; word != 0 && count > 0; --count) {
      *out++ = row + static_cast<std::int64_t>(bits::lowest(word));
      word &= word - 1;
    }
    words[at] = word;
    if (word == 0) ++at;
  }
  first_word_[page] = static_cast<PageIndex>(at);
  return out;
}

void SlotAllocator::free(const std::int64_t* ids, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    const std::size_t freed = free_run(ids + done, count - done);
    if (freed == 0) {
      retake(ids, done);
      reject(ids[done], ids, done);
    }
    done += freed;
  }
}

// Frees the ids at the front that lie on one page, up to the first that is not handed out; returns how many.
// Setting the bits is the validation: an id that comes twice finds its bit set by the first. The word at hand
// stays in a register, as ids come in runs.
std::size_t SlotAllocator::free_run(const std::int64_t* ids, std::size_t count) noexcept {
  const auto row = static_cast<std::size_t>(ids[0]);  // negative ids become larger than any row
  if (row >= geometry_.rows()) return 0;
  const std::size_t page = row / geometry_.rows_per_page();
  if (state_[page] != kBacked) return 0;
  const std::size_t begin = page * geometry_.rows_per_page();
  const std::size_t first = std::max(begin, geometry_.reserved_rows()) - begin;
  const std::size_t usable = geometry_.usable_rows(page);
  std::uint64_t* const words = &free_bits_[page * words_per_page_];
  std::size_t done = 0;
  std::size_t least_word = words_per_page_;
  std::size_t offset = row - begin;
  bool is_valid = true;
  while (is_valid && done < count && offset - first < usable) {
    const std::size_t at = offset / kWordBits;
    std::uint64_t word = words[at];
    do {
      is_valid = (word & bits::mask(offset)) == 0;
      if (!is_valid) break;
      word |= bits::mask(offset);
      if (++done == count) break;
      offset = static_cast<std::size_t>(ids[done]) - begin;  // wraps for rows of lower pages
    } while (offset / kWordBits == at && offset - first < usable);
    words[at] = word;
    least_word = std::min(least_word, at);
  }
  if (done == 0) return 0;
  detach(page);
  first_word_[page] = std::min(first_word_[page], static_cast<PageIndex>(least_word));
  free_count_[page] += static_cast<PageIndex>(done);
  attach(page);
  rows_free_ += done;
  return done;
}

// Undoes the freeing of ids.
void SlotAllocator::retake(const std::int64_t* ids, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = static_cast<std::size_t>(ids[i]);
    const std::size_t page = row / geometry_.rows_per_page();
    const std::size_t offset = row % geometry_.rows_per_page();
    detach(page);
    free_bits_[page * words_per_page_ + offset / kWordBits] &= ~bits::mask(offset);
    --free_count_[page];
    attach(page);
  }
  rows_free_ -= count;
}

void SlotAllocator::reject(std::int64_t id, const std::int64_t* ids, std::size_t position) const {
  const std::string where = "free: row " + std::to_string(id) + " at position " + std::to_string(position);
  if (id < 0 || id >= static_cast<std::int64_t>(geometry_.rows())) {
    throw Misuse(where + " is outside this pool of " + std::to_string(geometry_.rows()) + " rows");
  }
  if (id < static_cast<std::int64_t>(geometry_.reserved_rows())) {
    throw Misuse(where + " is one of the " + std::to_string(geometry_.reserved_rows()) +
                 " reserved rows, which are never handed out");
  }
  const bool twice = std::find(ids, ids + position, id) != ids + position;
  throw Misuse(where + (twice ? " appears twice in this batch" : " is not allocated (freed before?)"));
}

void SlotAllocator::attach(std::size_t page) noexcept {
  const std::size_t count = free_count_[page];
  if (count == 0) return;
  if (is_empty(page)) {
    empty_.insert(page);
    ++pages_empty_;
  } else {
    partial_.insert(partial_key(page, count));
  }
}

void SlotAllocator::detach(std::size_t page) noexcept {
  const std::size_t count = free_count_[page];
  if (count == 0) return;
  if (is_empty(page)) {
    empty_.erase(page);
    --pages_empty_;
  } else {
    partial_.erase(partial_key(page, count));
  }
}

void SlotAllocator::set_all_free(std::size_t page) noexcept {
  const std::size_t begin = page * geometry_.rows_per_page();
  const std::size_t first = std::max(begin, geometry_.reserved_rows()) - begin;
  const std::size_t end = first + geometry_.usable_rows(page);
  std::uint64_t* const words = &free_bits_[page * words_per_page_];
  for (std::size_t at = first / kWordBits; at * kWordBits < end; ++at) {
    std::uint64_t mask = ~std::uint64_t{0};
    if (at == first / kWordBits) mask &= ~std::uint64_t{0} << (first % kWordBits);
    if (end < (at + 1) * kWordBits) mask &= bits::mask(end) - 1;
    words[at] = mask;
  }
  first_word_[page] = 0;
  free_count_[page] = static_cast<PageIndex>(geometry_.usable_rows(page));
}

void SlotAllocator::reset() noexcept {
  for (std::size_t page = 0; page < watermark_; ++page) {
    if (state_[page] != kBacked) continue;
    detach(page);
    set_all_free(page);
    attach(page);
  }
  rows_free_ = rows_backed_;
}

std::size_t SlotAllocator::lowest_unbacked(std::size_t from) const noexcept {
  const std::size_t page = returned_.next(from);
  if (page != IndexSet::kNone) return page;
  return std::max(from, watermark_);
}

std::optional<PageRuns> SlotAllocator::plan_back(std::size_t rows) const {
  PageRuns runs;
  std::size_t free_rows = rows_free_;
  std::size_t page = 0;
  while (free_rows < rows) {
    page = lowest_unbacked(page);
    if (page >= geometry_.pages()) return std::nullopt;
    append_page(runs, page);
    free_rows += geometry_.usable_rows(page);
    ++page;
  }
  return runs;
}

PageRuns SlotAllocator::plan_pages(std::size_t pages) const {
  PageRuns runs;
  std::size_t page = lowest_unbacked(0);
  for (; pages > 0 && page < geometry_.pages(); --pages, page = lowest_unbacked(page + 1)) {
    append_page(runs, page);
  }
  return runs;
}

void SlotAllocator::mark_staged(const PageRuns& runs) noexcept {
  for (const PageRun& run : runs) {
    for (std::size_t page = run.first; page < run.first + run.count; ++page) {
      for (; watermark_ <= page; ++watermark_) returned_.insert(watermark_);
      returned_.erase(page);
      state_[page] = kStaged;
      ++pages_staged_;
      rows_staged_ += geometry_.usable_rows(page);
    }
  }
}

void SlotAllocator::mark_unstaged(const PageRuns& runs) noexcept {
  for (const PageRun& run : runs) {
    for (std::size_t page = run.first; page < run.first + run.count; ++page) {
      state_[page] = kUnbacked;
      --pages_staged_;
      rows_staged_ -= geometry_.usable_rows(page);
      returned_.insert(page);
    }
  }
}

void SlotAllocator::mark_backed(const PageRuns& runs) noexcept {
  for (const PageRun& run : runs) {
    for (std::size_t page = run.first; page < run.first + run.count; ++page) {
      state_[page] = kBacked;
      --pages_staged_;
      rows_staged_ -= geometry_.usable_rows(page);
      set_all_free(page);
      attach(page);
      ++pages_backed_;
      rows_backed_ += free_count_[page];
      rows_free_ += free_count_[page];
    }
  }
}

PageRuns SlotAllocator::plan_unback(std::size_t keep_rows) const {
  std::vector<std::size_t> pages;
  std::size_t free_rows = rows_free_;
  std::size_t page = empty_.previous(geometry_.pages() - 1);
  while (page != IndexSet::kNone && free_rows >= keep_rows + geometry_.usable_rows(page)) {
    free_rows -= geometry_.usable_rows(page);
    pages.push_back(page);
    page = page == 0 ? IndexSet::kNone : empty_.previous(page - 1);
  }
  PageRuns runs;
  for (auto it = pages.rbegin(); it != pages.rend(); ++it) append_page(runs, *it);
  return runs;
}

PageRuns SlotAllocator::removable_pages() const {
  PageRuns runs;
  for (std::size_t page = geometry_.pinned_pages(); page < watermark_; ++page) {
    if (state_[page] == kBacked) append_page(runs, page);
  }
  return runs;
}

void SlotAllocator::mark_unbacked(const PageRuns& runs) noexcept {
  for (const PageRun& run : runs) {
    for (std::size_t page = run.first; page < run.first + run.count; ++page) {
      detach(page);
      rows_backed_ -= free_count_[page];
      rows_free_ -= free_count_[page];
      --pages_backed_;
      state_[page] = kUnbacked;
      free_count_[page] = 0;
      std::fill_n(&free_bits_[page * words_per_page_], words_per_page_, 0);
      returned_.insert(page);
    }
  }
}

void SlotAllocator::check_invariants() const {
  std::size_t backed = 0, staged = 0, empty = 0, usable = 0, free_rows = 0, listed = 0, partial = 0;
  for (std::size_t page = 0; page < watermark_; ++page) {
    const auto fail = [page](const char* what) {
      throw Error("slots: page " + std::to_string(page) + ": " + what);
    };
    std::size_t free_bits = 0;
    for (std::size_t at = 0; at < words_per_page_; ++at) {
      const std::uint64_t word = free_bits_[page * words_per_page_ + at];
      free_bits += bits::count(word);
      if (word != 0 && at < first_word_[page]) fail("a free row lies before the search hint");
    }
    if (free_bits != free_count_[page]) fail("free count disagrees with its bitmap");
    if (free_bits > geometry_.usable_rows(page)) fail("more free rows than usable ones");
    const bool is_backed = state_[page] == kBacked;
    if ((state_[page] == kUnbacked) != returned_.contains(page))
      fail("state disagrees with the unbacked set");
    if (!is_backed && free_bits != 0) fail("not backed but has free rows");
    if (state_[page] == kUnbacked && is_pinned(page)) fail("pinned but not backed");
    if ((is_backed && free_bits != 0 && is_empty(page)) != empty_.contains(page)) fail("wrong in empty set");
    if (state_[page] == kStaged) ++staged;
    if (!is_backed) continue;
    if (empty_.contains(page)) ++empty;
    ++backed;
    usable += geometry_.usable_rows(page);
    free_rows += free_bits;
    if (free_bits == 0 || is_empty(page)) continue;
    ++partial;
    if (!partial_.contains(partial_key(page, free_bits))) fail("partial but not listed under its free count");
  }
  for (std::size_t key = partial_.next(0); key != IndexSet::kNone; key = partial_.next(key + 1)) ++listed;
  if (backed != pages_backed_ || staged != pages_staged_ || empty != pages_empty_ || usable != rows_backed_ ||
      free_rows != rows_free_ || listed != partial) {
    throw Error("slots: totals disagree with pages (backed " + std::to_string(backed) + "/" +
                std::to_string(pages_backed_) + ", usable rows " + std::to_string(usable) + "/" +
                std::to_string(rows_backed_) + ", free rows " + std::to_string(free_rows) + "/" +
                std::to_string(rows_free_) + ", partial " + std::to_string(listed) + "/" +
                std::to_string(partial) + ")");
  }
}

}  // namespace kvcached
