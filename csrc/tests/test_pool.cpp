// KvPool and VirtualRange over every backend, and with every call beneath them failing once.
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "arena/kv_pool.hpp"
#include "arena/virtual_range.hpp"
#include "backends.hpp"
#include "fault_drill.hpp"
#include "faulty_vmm.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "pool_rows.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/error.hpp"
#include "vmm/forwarding_vmm.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/limited_vmm.hpp"
#include "vmm/tracked_vmm.hpp"

namespace {

using namespace kvcached;
using backends::FaultyVmm;
using backends::Kit;
using backends::standin;
using drill::geometry_for;
using rows::alloc;
using rows::cell;
using rows::same;

constexpr std::size_t kStripes = 3;  // of the geometry that the drill makes

constexpr int kIllegalAddress = 700;  // CUDA_ERROR_ILLEGAL_ADDRESS: the context is dead for good

// A life over `kit` whose every backend call fails once; returns how many did.
template <typename Life>
long fail_every_backend_call(const Kit& kit) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  for (long nth = 1;; ++nth) {
    const auto tracked = std::make_shared<TrackedVmm>(kit.make());
    const auto faulty = std::make_shared<FaultyVmm>(tracked);
    const std::shared_ptr<LedgerClient> client = ledger.register_client({"life", 0, std::nullopt, 0});
    Life life([&] { return faulty; }, client);
    faulty->fail_at(nth);
    const drill::Passage passage = drill::live(life, [&] { faulty->never_fail(); });
    if (passage.state_changes + passage.failed_retries != 0) {
      testing::report(__FILE__, __LINE__, passage.complaint);
    }
    const TrackedVmm::Live left = tracked->live();
    CHECK_EQ(left.reservations + left.pieces + left.mappings, 0U);
    CHECK_EQ(client->used_bytes(), 0);
    if (!faulty->has_failed()) return nth - 1;
  }
}

// The steps of a pool's life, each tried once, with `count` driver calls in a row failing from the `nth` on.
// Says whether any failed.
bool live_with_a_broken_driver(const Ledger& ledger, long nth, long count) {
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"pool", 0, std::nullopt, 0});
  const long injected_before = standin().state().injected;
  {
    drill::PoolLife life([] { return std::make_shared<CudaVmm>(0); }, client);
    standin().break_down(nth, count, kIllegalAddress);
    bool has_pool = false;
    for (const auto& step : life.steps()) {
      try {
        step();
        has_pool = life.look().find("rows") != std::string::npos;  // the books balance
      } catch (const std::exception&) {
        // What matters is that it is an exception, and that all memory still held is still paid for.
        if (!has_pool) break;
      }
      CHECK(client->used_bytes() >= standin().state().held_bytes);
      if (testing::failures_in_test() != 0) break;
    }
  }
  standin().mend();
  const bool has_failed = standin().state().injected != injected_before;
  if (standin().state().violations != 0) {
    testing::report(__FILE__, __LINE__,
                    "calls " + std::to_string(nth) + " to " + std::to_string(nth + count - 1) +
                        " failed; then a rule was broken: " + standin().last_violation());
  }
  standin().reset();
  return has_failed;
}

}  // namespace

TEST_EACH_BACKEND(pool_rows_keep_their_contents_while_others_come_and_go) {
  KvPool pool(kit.make(), geometry_for(*kit.make()), nullptr);
  REQUIRE(pool.grow(100));
  const auto ids = alloc(pool, 60);
  for (const std::int64_t id : ids) {
    for (std::size_t s = 0; s < kStripes; ++s)
      *cell(pool, s, id) = static_cast<char>(id + static_cast<int>(s));
  }
  const std::vector<std::int64_t> kept(ids.begin(), ids.begin() + 20);
  pool.free(ids.data() + 20, 40);
  CHECK(pool.trim(0) > 0);
  REQUIRE(pool.grow(90));
  for (const std::int64_t id : alloc(pool, 90)) *cell(pool, 1, id) = 99;
  for (const std::int64_t id : kept) {
    for (std::size_t s = 0; s < kStripes; ++s)
      CHECK_EQ(*cell(pool, s, id), static_cast<char>(id + static_cast<int>(s)));
  }
  pool.check_invariants();
}

TEST_EACH_BACKEND(pool_the_reserved_row_is_backed_from_the_start_and_nothing_else) {
  KvPool pool(kit.make(), geometry_for(*kit.make()), nullptr);
  CHECK_EQ(pool.mapped_bytes(), pool.geometry().page_set_bytes());
  for (std::size_t s = 0; s < kStripes; ++s) {
    CHECK(backends::is_writable(pool.stripe_address(s)));
    const Address second_page = pool.stripe_address(s) + pool.geometry().segment_bytes(s);
    if (kit.make()->capabilities().strict) CHECK(!backends::is_readable(second_page));
  }
}

TEST_EACH_BACKEND(pool_a_run_of_pages_is_one_map_and_one_access_call_per_stripe) {
  class Counting : public ForwardingVmm {
   public:
    using ForwardingVmm::ForwardingVmm;
    void map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override {
      ++maps;
      ForwardingVmm::map(first, piece_bytes, handles, count);
    }
    void set_access(Address first, std::size_t bytes) override {
      ++accesses;
      ForwardingVmm::set_access(first, bytes);
    }
    std::size_t maps = 0, accesses = 0;
  };
  const auto vmm = std::make_shared<Counting>(kit.make());
  KvPool pool(vmm, geometry_for(*vmm), nullptr);
  REQUIRE(pool.grow(100));
  CHECK_EQ(vmm->maps, 2 * kStripes);  // one run for the reserved row, one for the rest
  CHECK_EQ(vmm->accesses, 2 * kStripes);
}

TEST_EACH_BACKEND(pool_grows_to_the_last_row_and_no_further) {
  KvPool pool(kit.make(), geometry_for(*kit.make()), nullptr);
  CHECK_EQ(pool.rows_total(), 167U);
  CHECK_EQ(pool.rows_attainable(), 167U);
  CHECK(!pool.grow(168));
  CHECK_EQ(pool.mapped_bytes(), pool.geometry().page_set_bytes());
  CHECK(pool.grow(167));
  CHECK_EQ(alloc(pool, 167).size(), 167U);
  CHECK(!pool.alloc(1, nullptr));
  CHECK_EQ(pool.rows_obtainable(), 0U);
  pool.clear();
  CHECK_EQ(pool.mapped_bytes(), pool.geometry().page_set_bytes());
  CHECK_EQ(pool.rows_obtainable(), 167U);
}

TEST_EACH_BACKEND(pool_a_closed_pool_says_so) {
  KvPool pool(kit.make(), geometry_for(*kit.make()), nullptr);
  pool.close();
  pool.close();
  CHECK_THROWS(Misuse, "closed", pool.grow(1));
  CHECK_THROWS(Misuse, "closed", pool.alloc(1, nullptr));
  CHECK_THROWS(Misuse, "closed", pool.trim(0));
}

TEST_EACH_BACKEND(pool_every_backend_call_may_fail_once) {
  CHECK(fail_every_backend_call<drill::PoolLife>(kit) > 20);
}

TEST_EACH_BACKEND(range_every_backend_call_may_fail_once) {
  CHECK(fail_every_backend_call<drill::RangeLife>(kit) > 5);
}

TEST(pool_and_range_every_driver_call_may_fail_once) {
  const drill::Figures figures = drill::fail_every_driver_call();
  CHECK(figures.driver_calls > 200);
  CHECK_EQ(figures.injected, figures.driver_calls);
  CHECK_EQ(figures.leaks, 0);
  CHECK_EQ(figures.rule_violations, 0);
  CHECK_EQ(figures.state_changes, 0);
  CHECK_EQ(figures.failed_retries, 0);
  CHECK_EQ(figures.complaint, "");
}

// An operation and its undoing, or everything from some instant on, as after a kernel's illegal access.
TEST(pool_a_driver_that_breaks_down_never_ends_the_process_nor_unbalances_the_books) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  for (const long count : {2L, 3L, 1'000'000L}) {
    long nth = 1;
    while (live_with_a_broken_driver(ledger, nth, count)) ++nth;
    CHECK(nth > 100);
  }
}

TEST(pool_growth_is_paid_for_and_refused_without_credit) {
  const LedgerFolder folder;
  const auto vmm = std::make_shared<HostVmm>(false);
  const Geometry geometry = geometry_for(*vmm);
  const auto page = static_cast<std::int64_t>(geometry.page_set_bytes());
  const Ledger ledger(folder.path(), 5 * page);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"a", 0, std::nullopt, 0});
  const std::shared_ptr<LedgerClient> other = ledger.register_client({"b", page, std::nullopt, 0});
  KvPool pool(vmm, geometry, client);
  CHECK_EQ(client->used_bytes(), page);
  CHECK_EQ(pool.rows_obtainable(), 15U + 3 * 16);  // one page is the other's floor
  CHECK_EQ(pool.rows_attainable(), 4U * 16 - 1);
  CHECK(pool.grow(15 + 3 * 16));
  CHECK(!pool.grow(15 + 3 * 16 + 1));
  CHECK_EQ(client->used_bytes(), 4 * page);
  CHECK(other->try_claim(page));
  CHECK(!other->try_claim(1));
  pool.trim(0);
  CHECK_EQ(client->used_bytes(), page);
  CHECK(other->try_claim(3 * page));
  CHECK_EQ(pool.rows_obtainable(), 15U);
  pool.close();
  CHECK_EQ(client->used_bytes(), 0);
}

TEST(pool_a_device_without_room_leaves_credit_and_rows_as_they_were) {
  const LedgerFolder folder;
  const auto host = std::make_shared<HostVmm>(false);
  const Geometry geometry = geometry_for(*host);
  const auto vmm = std::make_shared<LimitedVmm>(host, 3 * geometry.page_set_bytes());
  const Ledger ledger(folder.path(), std::int64_t{1} << 30);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"a", 0, std::nullopt, 0});
  KvPool pool(vmm, geometry, client);
  const PoolStats before = pool.stats();
  CHECK_THROWS(OutOfMemory, "backing 4 pages needs", pool.grow(70));
  CHECK(same(before, pool.stats()));
  CHECK_EQ(vmm->held_bytes(), geometry.page_set_bytes());
  CHECK_EQ(client->used_bytes(), static_cast<std::int64_t>(geometry.page_set_bytes()));
  CHECK(pool.grow(40));
}

TEST(pool_creating_a_terabyte_costs_next_to_nothing) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  throw testing::Skipped("sanitizers leave no room for a terabyte of addresses, or keep memory of their own");
#endif
  GeometrySpec spec;
  spec.rows = std::int64_t{1} << 26;
  spec.row_bytes.assign(8, 2048);
  spec.granularity_bytes = 4096;
  spec.page_bytes = 65536;
  const Geometry geometry(spec);
  CHECK_EQ(geometry.reservation_bytes(), std::size_t{1} << 40);
  for (int again = 0; again < 3; ++again) {  // tables on recycled memory must not be cleared by touching them
    const std::size_t resident_before_bytes = backends::resident_bytes();
    KvPool pool(std::make_shared<HostVmm>(false), geometry, nullptr);
    CHECK(backends::resident_bytes() - resident_before_bytes < pool.mapped_bytes() + (256 << 10));
    CHECK(pool.grow(1000));
    CHECK_EQ(backends::resident_bytes(pool.stripe_address(7), std::size_t{1} << 24), pool.mapped_bytes() / 8);
  }
}

TEST(range_shortage_says_need_held_and_who_holds_the_rest) {
  const LedgerFolder folder;
  const auto vmm = (standin(), std::make_shared<CudaVmm>(0));
  const std::size_t page = vmm->capabilities().granularity_bytes;
  const Ledger ledger(folder.path(), static_cast<std::int64_t>(6 * page));
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"weights", 0, std::nullopt, 0});
  VirtualRange range(vmm, 8 * page, page, client);
  range.map(0, 2 * page);
  CHECK_THROWS(OutOfMemory,
               "mapping needs 12582912 bytes, this range holds 4194304 of 16777216; 'weights' holds",
               range.map(2 * page, 6 * page));
  standin().set_total_bytes(static_cast<long>(3 * page));
  CHECK_THROWS(OutOfMemory,
               "the device refused: cuMemCreate(2097152, device 0) failed: CUDA_ERROR_OUT_OF_MEMORY (2)",
               range.map(2 * page, 2 * page));
  CHECK_EQ(range.mapped_bytes(), 2 * page);
  CHECK_EQ(client->used_bytes(), static_cast<std::int64_t>(2 * page));
  standin().set_total_bytes(1 << 30);
  range.map(2 * page, 2 * page);
}

TEST_EACH_BACKEND(range_maps_and_unmaps_by_offset) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"weights", 0, std::nullopt, 0});
  const auto vmm = kit.make();
  const std::size_t page = vmm->capabilities().default_page_bytes;
  VirtualRange range(vmm, 8 * page, page, client);
  range.map(2 * page, 3 * page);
  CHECK_EQ(client->used_bytes(), static_cast<std::int64_t>(3 * page));
  std::memset(reinterpret_cast<void*>(range.base() + 2 * page), 7, 3 * page);
  CHECK_THROWS(Misuse, "is mapped already", range.map(4 * page, 2 * page));
  CHECK_EQ(range.mapped_bytes(), 3 * page);
  CHECK_THROWS(Misuse, "is not mapped", range.unmap(page, 2 * page));
  CHECK_THROWS(Misuse, "whole pages", range.map(1, page));
  CHECK_THROWS(Misuse, "outside", range.map(8 * page, page));
  range.unmap(3 * page, page);
  CHECK_EQ(static_cast<int>(*reinterpret_cast<char*>(range.base() + 4 * page)), 7);
  CHECK_EQ(client->used_bytes(), static_cast<std::int64_t>(2 * page));
  CHECK_THROWS(Misuse, "still pays for a pool or range", client->close());
  range.close();
  CHECK_EQ(client->used_bytes(), 0);
  client->close();
  CHECK_THROWS(Misuse, "closed", range.map(0, page));
}
