#include "arena/geometry.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "vmm/error.hpp"

namespace kvcached {
namespace {

// User addresses end at 2^47 on the machines we run on; everything below stays clear of overflow.
constexpr std::int64_t kMaxReservationBytes = std::int64_t{1} << 47;
constexpr std::int64_t kMaxPages = std::numeric_limits<std::int32_t>::max();

void require_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  throw Misuse(std::string("geometry: ") + name + " is " + std::to_string(value) + ", must be between " +
               std::to_string(least) + " and " + std::to_string(most));
}

std::int64_t checked_lcm(std::int64_t a, std::int64_t b, std::int64_t most) {
  const std::int64_t part = a / std::gcd(a, b);
  if (part > most / b) {
    throw Misuse("geometry: the smallest page that suits every stripe would exceed " + std::to_string(most) +
                 " rows; choose row sizes that share factors with the granularity");
  }
  return part * b;
}

}  // namespace

Geometry::Geometry(GeometrySpec spec) {
  require_range("rows", spec.rows, 1, kMaxReservationBytes);
  require_range("granularity_bytes", spec.granularity_bytes, 1, std::int64_t{1} << 30);
  require_range("page_bytes", spec.page_bytes, spec.granularity_bytes, std::int64_t{1} << 40);
  require_range("row_multiple", spec.row_multiple, 1, std::int64_t{1} << 30);
  require_range("reserved_rows", spec.reserved_rows, 0, spec.rows - 1);
  require_range("number of stripes", static_cast<std::int64_t>(spec.row_bytes.size()), 1, 1 << 20);

  std::int64_t unit = spec.row_multiple;
  std::int64_t widest = 0;
  std::int64_t all_stripes_row_bytes = 0;
  for (const std::int64_t row_bytes : spec.row_bytes) {
    require_range("row_bytes", row_bytes, 1, std::int64_t{1} << 30);
    const std::int64_t stripe_unit = spec.granularity_bytes / std::gcd(spec.granularity_bytes, row_bytes);
    unit = checked_lcm(unit, stripe_unit, std::numeric_limits<std::int32_t>::max());
    widest = std::max(widest, row_bytes);
    all_stripes_row_bytes += row_bytes;
  }
  const std::int64_t units_per_page = std::max<std::int64_t>(1, spec.page_bytes / (unit * widest));
  const std::int64_t rows_per_page = unit * units_per_page;
  require_range("rows per page", rows_per_page, 1, std::numeric_limits<std::int32_t>::max());
  const std::int64_t pages = (spec.rows + rows_per_page - 1) / rows_per_page;
  require_range("number of pages", pages, 1, kMaxPages);
  if (rows_per_page > kMaxReservationBytes / all_stripes_row_bytes / pages) {
    throw Misuse("geometry: " + std::to_string(pages) + " pages of " + std::to_string(rows_per_page) +
                 " rows over " + std::to_string(spec.row_bytes.size()) +
                 " stripes exceed the address space of " + std::to_string(kMaxReservationBytes) +
                 " bytes; ask for fewer rows");
  }

  rows_ = static_cast<std::size_t>(spec.rows);
  rows_per_page_ = static_cast<std::size_t>(rows_per_page);
  pages_ = static_cast<std::size_t>(pages);
  reserved_rows_ = static_cast<std::size_t>(spec.reserved_rows);
  granularity_bytes_ = static_cast<std::size_t>(spec.granularity_bytes);
  std::size_t offset_bytes = 0;
  for (const std::int64_t row_bytes : spec.row_bytes) {
    const std::size_t segment_bytes = rows_per_page_ * static_cast<std::size_t>(row_bytes);
    segment_bytes_.push_back(segment_bytes);
    stripe_offset_bytes_.push_back(offset_bytes);
    offset_bytes += segment_bytes * pages_;
    page_set_bytes_ += segment_bytes;
    common_segment_bytes_ = std::gcd(common_segment_bytes_, segment_bytes);
  }
}

std::size_t Geometry::usable_rows(std::size_t page) const noexcept {
  const std::size_t first = std::max(page * rows_per_page_, reserved_rows_);
  const std::size_t end = std::min((page + 1) * rows_per_page_, rows_);
  return end > first ? end - first : 0;
}

}  // namespace kvcached
