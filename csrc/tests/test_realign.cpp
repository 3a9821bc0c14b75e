// A pool whose reservation is given to another model's geometry, over every backend.
#include <memory>
#include <vector>

#include "arena/kv_pool.hpp"
#include "backends.hpp"
#include "faulty_vmm.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "pool_rows.hpp"
#include "vmm/error.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/tracked_vmm.hpp"

namespace {

using namespace kvcached;
using backends::FaultyVmm;
using rows::geometry_of;

void use_all_rows(KvPool& pool) {
  REQUIRE(pool.grow(pool.rows_total()));
  const auto ids = rows::alloc(pool, pool.rows_total());
  for (std::size_t stripe = 0; stripe < pool.geometry().stripes(); ++stripe) {
    for (const std::int64_t id : ids) *rows::cell(pool, stripe, id) = 1;
  }
  pool.check_invariants();
  pool.free(ids.data(), ids.size());
}

}  // namespace

TEST_EACH_BACKEND(pool_realigned_serves_another_model_at_the_same_addresses) {
  const auto vmm = kit.make();
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"pool", 0, std::nullopt, 0});
  KvPool pool(vmm, geometry_of(*vmm, 160, 6), client);
  const Address base = pool.base();
  use_all_rows(pool);
  for (const Geometry& next :
       {geometry_of(*vmm, 320, 3), geometry_of(*vmm, 80, 3, 4), geometry_of(*vmm, 160, 6)}) {
    pool.realign(next);
    CHECK_EQ(pool.base(), base);
    CHECK_EQ(pool.mapped_bytes(), next.page_set_bytes());
    CHECK_EQ(pool.rows_total(), next.rows() - 1);
    use_all_rows(pool);
    CHECK_EQ(client->used_bytes(), static_cast<std::int64_t>(pool.mapped_bytes()));
  }
  pool.close();
  CHECK_EQ(client->used_bytes(), 0);
}

TEST_EACH_BACKEND(pool_realign_refuses_what_it_cannot_do_and_changes_nothing) {
  const auto vmm = kit.make();
  KvPool pool(vmm, geometry_of(*vmm, 160, 2), nullptr);
  const std::size_t had_bytes = pool.geometry().reservation_bytes();
  const Geometry larger = geometry_of(*vmm, 161, 2);
  CHECK_THROWS(Misuse,
               "needs " + std::to_string(larger.reservation_bytes()) +
                   " bytes of addresses, the reservation has " + std::to_string(had_bytes),
               pool.realign(larger));
  REQUIRE(pool.grow(1));
  std::int64_t id = 0;
  REQUIRE(pool.alloc(1, &id));
  CHECK_THROWS(Misuse, "1 rows are in use", pool.realign(geometry_of(*vmm, 160, 1)));
  CHECK_EQ(pool.geometry().stripes(), 2U);
  pool.check_invariants();
}

TEST(pool_realign_keeps_small_pages_out_of_a_range_of_huge_ones) {
  const auto vmm = std::make_shared<HostVmm>(false);
  const std::int64_t granules = (2 << 20) / static_cast<std::int64_t>(vmm->capabilities().granularity_bytes);
  KvPool pool(vmm, geometry_of(*vmm, 160, 1, granules), nullptr);
  CHECK_THROWS(Misuse, "reserved for huge pages", pool.realign(geometry_of(*vmm, 160, 1)));
  pool.realign(geometry_of(*vmm, 80, 1, 2 * granules));
  pool.check_invariants();
}

TEST(pool_realign_without_credit_for_wider_reserved_rows_changes_nothing) {
  const auto vmm = std::make_shared<HostVmm>(false);
  const LedgerFolder folder;
  const Geometry narrow = geometry_of(*vmm, 160, 4), wide = geometry_of(*vmm, 32, 4, 4);
  const Ledger ledger(folder.path(), static_cast<std::int64_t>(wide.pinned_bytes()));
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"pool", 0, std::nullopt, 0});
  const auto other = ledger.register_client({"other", 0, std::nullopt, 0});
  KvPool pool(vmm, narrow, client);
  REQUIRE(other->try_claim(1));
  CHECK_THROWS(OutOfMemory, "needs " + std::to_string(wide.pinned_bytes()) + " bytes, this pool holds",
               pool.realign(wide));
  pool.check_invariants();
  CHECK_EQ(pool.geometry().rows(), 160U);
  other->release(1);
  pool.realign(wide);
  pool.check_invariants();
}

TEST_EACH_BACKEND(pool_realign_survives_any_single_failure) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  long injected = 0;
  for (long nth = 1;; ++nth) {
    const auto tracked = std::make_shared<TrackedVmm>(kit.make());
    const auto faulty = std::make_shared<FaultyVmm>(tracked);
    const std::shared_ptr<LedgerClient> client = ledger.register_client({"pool", 0, std::nullopt, 0});
    KvPool pool(faulty, geometry_of(*faulty, 160, 3), client);
    REQUIRE(pool.grow(40));
    const Geometry next = geometry_of(*faulty, 48, 2, 4);
    faulty->fail_at(nth);
    try {
      pool.realign(next);
    } catch (const Error&) {
      faulty->never_fail();
      pool.check_invariants();
      CHECK_EQ(pool.geometry().rows(), 160U);
      CHECK(pool.mapped_bytes() >= pool.geometry().pinned_bytes());
      use_all_rows(pool);
      pool.realign(next);
    }
    faulty->never_fail();
    pool.check_invariants();
    CHECK_EQ(pool.geometry().rows(), 48U);
    use_all_rows(pool);
    pool.close();
    CHECK_EQ(client->used_bytes(), 0);
    CHECK_EQ(tracked->live().pieces + tracked->live().mappings + tracked->live().reservations, 0U);
    if (!faulty->has_failed()) break;
    ++injected;
  }
  CHECK(injected >= 8);
}

TEST(pool_realign_whose_way_back_fails_too_closes_the_pool) {
  // Fails every map from the armed moment on.
  class NoMoreMaps : public ForwardingVmm {
   public:
    using ForwardingVmm::ForwardingVmm;
    void map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) override {
      if (is_armed) throw OutOfMemory("the device is full");
      ForwardingVmm::map(first, piece_bytes, handles, count);
    }
    bool is_armed = false;
  };
  const auto tracked = std::make_shared<TrackedVmm>(std::make_shared<HostVmm>(false));
  const auto vmm = std::make_shared<NoMoreMaps>(tracked);
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 30);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"pool", 0, std::nullopt, 0});
  KvPool pool(vmm, geometry_of(*vmm, 160, 2), client);
  vmm->is_armed = true;
  CHECK_THROWS(OutOfMemory, "the device is full", pool.realign(geometry_of(*vmm, 160, 1)));
  CHECK(pool.is_closed());
  CHECK_EQ(client->used_bytes(), 0);
  CHECK_EQ(tracked->live().reservations, 0U);
  CHECK_THROWS(Misuse, "closed", pool.grow(1));
}
