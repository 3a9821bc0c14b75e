#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcached {

struct GeometrySpec {
  std::int64_t rows = 0;
  std::vector<std::int64_t> row_bytes;  // one entry per stripe
  std::int64_t granularity_bytes = 0;
  std::int64_t page_bytes = 0;
  std::int64_t row_multiple = 1;
  std::int64_t reserved_rows = 1;
};

// Pure value: where row r of stripe s lives, and which rows share physical memory.
//
// A stripe is one K or V tensor of one layer: `rows` rows, contiguous. Stripes lie one after another. A page
// is the same rows_per_page consecutive rows in every stripe, so a page always comes and goes as a whole.
class Geometry {
 public:
  // Throws Misuse naming the offending value.
  explicit Geometry(GeometrySpec spec);

  std::size_t rows() const noexcept { return rows_; }
  std::size_t rows_per_page() const noexcept { return rows_per_page_; }
  std::size_t pages() const noexcept { return pages_; }
  std::size_t stripes() const noexcept { return segment_bytes_.size(); }
  std::size_t reserved_rows() const noexcept { return reserved_rows_; }
  // Pages that hold reserved rows: always backed.
  std::size_t pinned_pages() const noexcept { return (reserved_rows_ + rows_per_page_ - 1) / rows_per_page_; }
  std::size_t pinned_bytes() const noexcept { return pinned_pages() * page_set_bytes_; }
  std::size_t granularity_bytes() const noexcept { return granularity_bytes_; }
  std::size_t page_set_bytes() const noexcept { return page_set_bytes_; }
  std::size_t reservation_bytes() const noexcept { return page_set_bytes_ * pages_; }
  // Bytes of one page within stripe `s`.
  std::size_t segment_bytes(std::size_t stripe) const noexcept { return segment_bytes_[stripe]; }
  std::size_t stripe_offset_bytes(std::size_t stripe) const noexcept { return stripe_offset_bytes_[stripe]; }
  // Largest unit of which every segment is a multiple: what decides whether huge pages may be used.
  std::size_t common_segment_bytes() const noexcept { return common_segment_bytes_; }
  // Bytes of one page within every stripe, where they are all the same; else 0.
  std::size_t uniform_segment_bytes() const noexcept {
    return page_set_bytes_ == common_segment_bytes_ * stripes() ? common_segment_bytes_ : 0;
  }
  // Rows of `page` that can be handed out: not reserved, not beyond the last row.
  std::size_t usable_rows(std::size_t page) const noexcept;

 private:
  std::size_t rows_ = 0;
  std::size_t rows_per_page_ = 0;
  std::size_t pages_ = 0;
  std::size_t reserved_rows_ = 0;
  std::size_t granularity_bytes_ = 0;
  std::size_t page_set_bytes_ = 0;
  std::size_t common_segment_bytes_ = 0;
  std::vector<std::size_t> segment_bytes_;
  std::vector<std::size_t> stripe_offset_bytes_;
};

}  // namespace kvcached
