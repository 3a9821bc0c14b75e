// Rows of a pool as tests use them.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/kv_pool.hpp"
#include "testing.hpp"

namespace rows {

inline std::vector<std::int64_t> alloc(kvcached::KvPool& pool, std::size_t count) {
  std::vector<std::int64_t> ids(count);
  REQUIRE(pool.alloc(count, ids.data()));
  return ids;
}

// The first byte of a row in one stripe.
inline char* cell(const kvcached::KvPool& pool, std::size_t stripe, std::int64_t id) {
  const kvcached::Geometry& g = pool.geometry();
  const std::size_t row_bytes = g.segment_bytes(stripe) / g.rows_per_page();
  return reinterpret_cast<char*>(pool.stripe_address(stripe) + static_cast<std::size_t>(id) * row_bytes);
}

// `stripes` tensors of 16-row pages of `granules` each.
inline kvcached::Geometry geometry_of(const kvcached::Vmm& vmm, std::int64_t count, std::size_t stripes,
                                      std::int64_t granules = 1) {
  const auto granularity_bytes = static_cast<std::int64_t>(vmm.capabilities().granularity_bytes);
  kvcached::GeometrySpec spec;
  spec.rows = count;
  spec.row_bytes.assign(stripes, granules * granularity_bytes / 16);
  spec.granularity_bytes = granularity_bytes;
  spec.page_bytes = granules * granularity_bytes;
  return kvcached::Geometry(spec);
}

// All that must not change when a call is refused.
inline bool same(const kvcached::PoolStats& a, const kvcached::PoolStats& b) {
  return a.rows_used == b.rows_used && a.rows_free_backed == b.rows_free_backed &&
         a.rows_backed == b.rows_backed && a.rows_obtainable == b.rows_obtainable &&
         a.rows_attainable == b.rows_attainable && a.mapped_bytes == b.mapped_bytes && a.maps == b.maps &&
         a.unmaps == b.unmaps;
}

}  // namespace rows
