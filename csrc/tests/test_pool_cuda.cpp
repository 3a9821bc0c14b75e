// What a pool asks of the CUDA driver: how many calls, of which device, and with which pieces. Over the
// stand-in.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "arena/kv_pool.hpp"
#include "backends.hpp"
#include "fault_drill.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "pool/page_pool.hpp"
#include "pool_rows.hpp"
#include "vmm/cuda_driver.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;
using backends::standin;
using drill::geometry_for;
using rows::alloc;
using rows::cell;
using rows::geometry_of;

constexpr long kStripes = 3;  // of the geometry that the drill makes

std::shared_ptr<CudaVmm> device(int index) {
  standin();
  return std::make_shared<CudaVmm>(index);
}

// How often each call of a page's life was made since the last look.
struct Calls {
  long creates = 0, releases = 0, maps = 0, unmaps = 0, accesses = 0;

  static Calls now() {
    return {standin().calls("cuMemCreate"), standin().calls("cuMemRelease"), standin().calls("cuMemMap"),
            standin().calls("cuMemUnmap"), standin().calls("cuMemSetAccess")};
  }
  Calls since(const Calls& then) const {
    return {creates - then.creates, releases - then.releases, maps - then.maps, unmaps - then.unmaps,
            accesses - then.accesses};
  }
};

}  // namespace

// No zero page lies under what is not backed: neither calls nor memory depend on the size of the pool.
TEST(pool_on_cuda_making_one_maps_the_reserved_rows_and_nothing_else) {
  const auto vmm = device(0);
  for (const std::int64_t rows : {160L, 1L << 17}) {
    const Calls before = Calls::now();
    const KvPool pool(vmm, geometry_of(*vmm, rows, 4), nullptr);
    const Calls made = Calls::now().since(before);
    CHECK_EQ(made.creates, 4);
    CHECK_EQ(made.maps, 4);
    CHECK_EQ(made.accesses, 4);
    CHECK_EQ(standin().held_bytes(0), static_cast<long>(pool.mapped_bytes()));
    CHECK(!backends::is_readable(pool.stripe_address(1) + pool.geometry().segment_bytes(1)));
  }
}

TEST(pool_on_cuda_a_run_of_pages_is_one_access_call_per_stripe_and_a_page_one_map) {
  const auto vmm = device(0);
  KvPool pool(vmm, geometry_for(*vmm), nullptr);
  Calls before = Calls::now();
  REQUIRE(pool.grow(5 * 16));  // 15 rows lie on the reserved row's page
  Calls made = Calls::now().since(before);
  CHECK_EQ(made.creates, 5 * kStripes);
  CHECK_EQ(made.maps, 5 * kStripes);
  CHECK_EQ(made.accesses, kStripes);
  before = Calls::now();
  CHECK_EQ(pool.trim(0), 5 * pool.geometry().page_set_bytes());
  made = Calls::now().since(before);
  CHECK_EQ(made.unmaps, 5 * kStripes);
  CHECK_EQ(made.releases, 5 * kStripes);
  CHECK_EQ(made.creates + made.maps + made.accesses, 0);
}

TEST(pool_on_cuda_a_trim_that_stops_half_way_releases_what_it_unmapped) {
  const auto vmm = device(0);
  KvPool pool(vmm, geometry_for(*vmm), nullptr);
  REQUIRE(pool.grow(167));
  auto ids = alloc(pool, 167);
  // A row of page 5 stays and parts the empty pages into two runs.
  std::swap(*std::find(ids.begin(), ids.end(), 5 * 16), ids.back());
  pool.free(ids.data(), ids.size() - 1);
  standin().fail("cuMemUnmap", 4 * kStripes + 1, cuda::kInvalidValue);
  CHECK_EQ(pool.trim(0), 4 * pool.geometry().page_set_bytes());
  CHECK_EQ(standin().held_bytes(0), static_cast<long>(pool.mapped_bytes()));
  pool.check_invariants();
  CHECK_EQ(pool.trim(0), 5 * pool.geometry().page_set_bytes());
}

TEST(pool_on_cuda_warm_pages_serve_again_without_a_call) {
  const auto vmm = device(0);
  KvPool pool(vmm, geometry_for(*vmm), nullptr);
  REQUIRE(pool.grow(100));
  const long before = standin().calls("");
  for (int round = 0; round < 20; ++round) {
    const auto ids = alloc(pool, 100);
    pool.free(ids.data(), ids.size());
    pool.trim(100);
    REQUIRE(pool.grow(100));
  }
  CHECK_EQ(standin().calls(""), before);
}

TEST(pool_on_cuda_a_page_pool_recycles_handles_until_trimmed) {
  const auto vmm = device(0);
  const std::size_t bytes = vmm->capabilities().granularity_bytes;
  PagePool pages(vmm);
  pages.take(bytes, 3);  // taken and at once given back
  CHECK_EQ(pages.kept_bytes(), 3 * bytes);
  const Calls before = Calls::now();
  {
    const auto again = pages.take(bytes, 2);
    CHECK_EQ(pages.kept_bytes(), bytes);
  }
  CHECK_EQ(Calls::now().since(before).creates, 0);
  CHECK_EQ(pages.trim(bytes), 2 * bytes);
  CHECK_EQ(standin().held_bytes(0), static_cast<long>(bytes));
  CHECK_EQ(pages.trim(0), bytes);
}

TEST(pool_on_cuda_realigning_recycles_the_pieces_that_fit) {
  const auto vmm = device(0);
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"pool", 0, std::nullopt, 0});
  KvPool pool(vmm, geometry_of(*vmm, 160, 4), client);
  const auto realign = [&](const Geometry& next) {
    const Calls before = Calls::now();
    pool.realign(next);
    pool.check_invariants();
    CHECK_EQ(standin().held_bytes(0), static_cast<long>(next.pinned_bytes()));
    CHECK_EQ(client->used_bytes(), static_cast<std::int64_t>(next.pinned_bytes()));
    return Calls::now().since(before);
  };
  Calls made = realign(geometry_of(*vmm, 300, 2));
  CHECK_EQ(made.creates, 0);
  CHECK_EQ(made.releases, 2);
  made = realign(geometry_of(*vmm, 100, 3));
  CHECK_EQ(made.creates, 1);
  CHECK_EQ(made.releases, 0);
  made = realign(geometry_of(*vmm, 100, 1, 2));  // other pieces: none fits
  CHECK_EQ(made.creates, 1);
  CHECK_EQ(made.releases, 3);
}

// Between giving memory back and asking for it again anybody could take it: pieces that fit are never given
// back.
TEST(pool_on_cuda_the_way_back_of_a_failed_realignment_needs_no_new_memory) {
  const auto vmm = device(0);
  KvPool pool(vmm, geometry_of(*vmm, 160, 3), nullptr);
  standin().set_total_bytes(static_cast<long>(pool.mapped_bytes()));
  const Calls before = Calls::now();
  CHECK_THROWS(OutOfMemory, "cuMemCreate", pool.realign(geometry_of(*vmm, 32, 4)));
  CHECK_EQ(Calls::now().since(before).creates, 1);
  CHECK_EQ(Calls::now().since(before).releases, 0);
  CHECK_EQ(pool.geometry().stripes(), 3U);
  pool.check_invariants();
  standin().set_total_bytes(1 << 30);
  pool.realign(geometry_of(*vmm, 32, 4));
}

TEST(pool_on_cuda_each_device_of_a_process_has_its_own_pool_budget_and_memory) {
  const LedgerFolder folders[2];
  std::vector<std::unique_ptr<Ledger>> ledgers;
  std::vector<std::shared_ptr<LedgerClient>> clients;
  std::vector<std::unique_ptr<KvPool>> pools;
  std::vector<std::int64_t> ids[2];
  for (int index = 0; index < 2; ++index) {
    const auto vmm = device(index);
    const Geometry geometry = geometry_of(*vmm, 160, index == 0 ? 3 : 2);
    const auto budget_bytes = static_cast<std::int64_t>(6 * geometry.page_set_bytes());
    ledgers.push_back(std::make_unique<Ledger>(folders[index].path(), budget_bytes));
    clients.push_back(ledgers.back()->register_client({"engine", 0, std::nullopt, 0}));
    pools.push_back(std::make_unique<KvPool>(vmm, geometry, clients.back()));
  }
  for (const std::size_t turn : {0U, 1U, 1U, 0U, 1U, 0U}) {
    const std::size_t other = 1 - turn;
    const long others_bytes = standin().held_bytes(static_cast<int>(other));
    REQUIRE(pools[turn]->grow(20));
    for (const std::int64_t id : alloc(*pools[turn], 20)) {
      *cell(*pools[turn], 1, id) = static_cast<char>(id + static_cast<std::int64_t>(turn));
      ids[turn].push_back(id);
    }
    CHECK_EQ(standin().held_bytes(static_cast<int>(turn)), static_cast<long>(pools[turn]->mapped_bytes()));
    CHECK_EQ(standin().held_bytes(static_cast<int>(other)), others_bytes);
    CHECK_EQ(clients[turn]->used_bytes(), static_cast<std::int64_t>(pools[turn]->mapped_bytes()));
    CHECK_EQ(clients[other]->used_bytes(), others_bytes);
  }
  CHECK(!pools[0]->grow(60));  // its budget is not the other's
  for (const std::size_t turn : {0U, 1U}) {
    for (const std::int64_t id : ids[turn])
      CHECK_EQ(*cell(*pools[turn], 1, id), static_cast<char>(id + static_cast<std::int64_t>(turn)));
  }
  pools[0]->close();
  CHECK_EQ(standin().held_bytes(0), 0);
  CHECK_EQ(standin().held_bytes(1), static_cast<long>(pools[1]->mapped_bytes()));
  pools[1]->check_invariants();
}
