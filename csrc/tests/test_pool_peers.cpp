// Faults that a comparable project had in its pools: each must stay impossible here.
#include <memory>
#include <set>

#include "arena/kv_pool.hpp"
#include "backends.hpp"
#include "fault_drill.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "pool_rows.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;
using backends::standin;
using drill::geometry_for;
using rows::alloc;
using rows::cell;
using rows::same;

}  // namespace

// The peer's callback for a second pool's group mapped into the first.
TEST_EACH_BACKEND(pool_peer_fault_01_a_second_pool_maps_into_its_own_range) {
  const auto vmm = kit.make();
  KvPool first(vmm, geometry_for(*vmm), nullptr);
  KvPool second(vmm, geometry_for(*vmm), nullptr);
  REQUIRE(second.grow(100));
  CHECK_EQ(first.mapped_bytes(), first.geometry().page_set_bytes());
  const Address first_page_2 = first.stripe_address(1) + first.geometry().segment_bytes(1);
  CHECK_EQ(backends::resident_bytes(first_page_2, first.geometry().segment_bytes(1)), 0U);
  for (const std::int64_t id : alloc(second, 100)) *cell(second, 1, id) = 7;
  REQUIRE(first.grow(100));
  for (const std::int64_t id : alloc(first, 100)) *cell(first, 1, id) = 8;
  CHECK_EQ(static_cast<int>(*cell(second, 1, 1)), 7);
  first.close();
  CHECK_EQ(static_cast<int>(*cell(second, 1, 100)), 7);
}

// The peer aborts when memory that its check saw is gone by the time it maps.
TEST(pool_peer_fault_03_memory_taken_by_others_after_the_check_is_an_error) {
  const LedgerFolder folder;
  const auto vmm = (standin(), std::make_shared<CudaVmm>(0));
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"a", 0, std::nullopt, 0});
  KvPool pool(vmm, geometry_for(*vmm), client);
  CHECK_EQ(pool.rows_obtainable(), 167U);
  const PoolStats before = pool.stats();
  const auto held_bytes = static_cast<long>(pool.mapped_bytes());
  standin().set_total_bytes(held_bytes + (4 << 20));
  CHECK_THROWS(OutOfMemory, "'a' holds", pool.grow(167));
  CHECK_THROWS(OutOfMemory, "by others 0, free 0 of", pool.grow(167));
  CHECK(same(before, pool.stats()));
  CHECK_EQ(client->used_bytes(), held_bytes);
  pool.check_invariants();
  standin().set_total_bytes(1 << 30);
  CHECK(pool.grow(167));
}

// The peer aborts in unmap once a limit was raised above what it had reserved.
TEST_EACH_BACKEND(pool_peer_fault_04_a_limit_above_the_reservation_adds_no_rows) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 40);
  const auto vmm = kit.make();
  const auto page = static_cast<std::int64_t>(geometry_for(*vmm).page_set_bytes());
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"a", 0, 2 * page, 0});
  KvPool pool(vmm, geometry_for(*vmm), client);
  CHECK_EQ(pool.rows_attainable(), 31U);
  client->set_limit(1000 * page);
  CHECK_EQ(pool.rows_attainable(), 167U);
  CHECK(!pool.grow(168));
  CHECK(pool.grow(167));
  pool.trim(0);
  CHECK_EQ(client->used_bytes(), page);
  pool.close();
  CHECK_EQ(client->used_bytes(), 0);
}

// The peer hands the same pages out twice after a shrink and a grow.
TEST_EACH_BACKEND(pool_peer_fault_05_rows_are_handed_out_once_after_shrink_and_grow) {
  KvPool pool(kit.make(), geometry_for(*kit.make()), nullptr);
  REQUIRE(pool.grow(167));
  const auto first = alloc(pool, 167);
  pool.free(first.data() + 40, 127);
  CHECK(pool.trim(0) > 0);
  std::set<std::int64_t> held(first.begin(), first.begin() + 40);
  REQUIRE(pool.grow(127));
  for (const std::int64_t id : alloc(pool, 127)) CHECK(held.insert(id).second);
  CHECK_EQ(held.size(), 167U);
  pool.check_invariants();
}

// The peer asks for its limit at every allocation, and never grows again once the limit is lifted.
TEST(pool_peer_fault_08_rows_cost_no_call_and_a_lifted_limit_lets_the_pool_grow) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  const auto vmm = (standin(), std::make_shared<CudaVmm>(0));
  const auto page = static_cast<std::int64_t>(geometry_for(*vmm).page_set_bytes());
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"a", 0, std::nullopt, 0});
  KvPool pool(vmm, geometry_for(*vmm), client);
  client->set_limit(2 * page);
  CHECK(!pool.grow(167));
  REQUIRE(pool.grow(31));
  const long calls = standin().calls("");
  for (int i = 0; i < 100; ++i) {
    const auto ids = alloc(pool, 31);
    pool.free(ids.data(), ids.size());
  }
  CHECK_EQ(standin().calls(""), calls);
  client->set_limit(std::nullopt);
  CHECK(pool.grow(167));
}
