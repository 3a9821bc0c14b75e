#pragma once

#include <cstddef>
#include <vector>

namespace kvcached {

// Pages [first, first + count).
struct PageRun {
  std::size_t first = 0;
  std::size_t count = 0;
};

using PageRuns = std::vector<PageRun>;

// Adds `page` to the last run if it continues it, else starts a new run.
inline void append_page(PageRuns& runs, std::size_t page) {
  if (!runs.empty() && runs.back().first + runs.back().count == page) {
    ++runs.back().count;
  } else {
    runs.push_back({page, 1});
  }
}

inline std::size_t count_pages(const PageRuns& runs) noexcept {
  std::size_t pages = 0;
  for (const PageRun& run : runs) pages += run.count;
  return pages;
}

}  // namespace kvcached
