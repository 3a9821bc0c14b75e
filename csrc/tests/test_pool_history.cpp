// Random lives of a pool against a model (which rows are held, and what is written in them), over every
// backend, beside another client of the budget, with and without calls that fail.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "arena/kv_pool.hpp"
#include "backends.hpp"
#include "faulty_vmm.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "pool_rows.hpp"
#include "vmm/error.hpp"
#include "vmm/tracked_vmm.hpp"

namespace {

using namespace kvcached;
using backends::FaultyVmm;
using backends::Kit;

class History {
 public:
  History(const Kit& kit, PagePolicy policy, unsigned seed)
      : random_(seed),
        tracked_(std::make_shared<TrackedVmm>(kit.make())),
        vmm_(std::make_shared<FaultyVmm>(tracked_)),
        page_bytes_(static_cast<std::int64_t>(rows::geometry_of(*vmm_, 160, 3).page_set_bytes())),
        ledger_(folder_.path(), 9 * page_bytes_),
        client_(ledger_.register_client({"pool", 0, std::nullopt, 0})),
        other_(ledger_.register_client({"other", 0, std::nullopt, 0})),
        pool_(std::make_unique<KvPool>(vmm_, rows::geometry_of(*vmm_, 160, 3), client_, policy)) {}

  void step(bool with_faults) {
    const PoolStats before = pool_->stats();
    if (with_faults && random_() % 2 == 0) vmm_->fail_at(1 + static_cast<long>(random_() % 8));
    try {
      act();
    } catch (const Misuse&) {
      throw;
    } catch (const Error&) {
      ++failures_;
      const PoolStats after = pool_->stats();
      CHECK_EQ(after.rows_used, before.rows_used);
      CHECK_EQ(after.allocs - before.allocs, after.frees - before.frees);
      CHECK(after.mapped_bytes <= before.mapped_bytes);  // a realignment gives empty pages back first
    }
    vmm_->never_fail();
    compare();
  }

  void end() {
    pool_->close();
    CHECK_EQ(client_->used_bytes(), 0);
    const TrackedVmm::Live left = tracked_->live();
    CHECK_EQ(left.reservations + left.pieces + left.mappings, 0U);
  }

  long failures() const { return failures_; }

 private:
  void act() {
    if (written_.empty() && random_() % 3 == 0) return realign();
    switch (random_() % 16) {
      case 0:
      case 1:
        return clear();
      case 2:
        return misuse();
      case 3:
      case 4:
        pool_->trim(random_() % 100);
        return;
      case 5:
        return compete();
      case 6:
      case 7:
      case 8:
      case 9:
        return free();
      default:
        return alloc();
    }
  }

  void alloc() {
    const std::size_t count = random_() % 60;
    const bool is_obtainable = count <= pool_->rows_obtainable();
    CHECK_EQ(pool_->grow(count), is_obtainable);
    if (!is_obtainable) return;
    for (const std::int64_t id : rows::alloc(*pool_, count)) {
      CHECK(written_.emplace(id, ++stamp_).second);
      for (std::size_t s = 0; s < pool_->geometry().stripes(); ++s)
        *rows::cell(*pool_, s, id) = content(id, s);
    }
  }

  std::vector<std::int64_t> some_held() {
    std::vector<std::int64_t> ids;
    for (const auto& [id, stamp] : written_) ids.push_back(id);
    std::shuffle(ids.begin(), ids.end(), random_);
    if (!ids.empty()) ids.resize(random_() % (ids.size() + 1));
    return ids;
  }

  void free() {
    const std::vector<std::int64_t> ids = some_held();
    pool_->free(ids.data(), ids.size());
    for (const std::int64_t id : ids) written_.erase(id);
  }

  void misuse() {
    std::vector<std::int64_t> ids = some_held();
    const auto rows = static_cast<std::int64_t>(pool_->geometry().rows());
    std::vector<std::int64_t> bad = {-1, 0, rows, INT64_MIN, INT64_MAX};
    if (!ids.empty()) bad.push_back(ids.front());
    for (std::int64_t id = 1; id < rows; ++id) {
      if (written_.count(id) == 0) bad.push_back(id);
    }
    ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(random_() % (ids.size() + 1)),
               bad[random_() % bad.size()]);
    CHECK_THROWS(Misuse, "free: row", pool_->free(ids.data(), ids.size()));
    if (!written_.empty()) {
      CHECK_THROWS(Misuse, "rows are in use", pool_->realign(rows::geometry_of(*vmm_, 160, 1)));
    }
  }

  void clear() {
    pool_->clear();
    written_.clear();
  }

  // Another client takes and returns what the pool does not hold.
  void compete() {
    if (others_bytes_ == 0 && other_->try_claim(page_bytes_)) others_bytes_ = page_bytes_;
    if (random_() % 2 == 0) other_->release(std::exchange(others_bytes_, 0));
  }

  void realign() {
    const std::vector<Geometry> models = {rows::geometry_of(*vmm_, 160, 3), rows::geometry_of(*vmm_, 320, 1),
                                          rows::geometry_of(*vmm_, 80, 3, 2), rows::geometry_of(*vmm_, 50, 2),
                                          rows::geometry_of(*vmm_, 90, 1, 4)};
    const Geometry& next = models[random_() % models.size()];
    const std::size_t rows_before = pool_->geometry().rows();
    try {
      pool_->realign(next);
      CHECK_EQ(pool_->geometry().rows(), next.rows());
    } catch (const Error&) {
      CHECK_EQ(pool_->geometry().rows(), rows_before);
      throw;
    }
  }

  void compare() const {
    pool_->check_invariants();
    CHECK_EQ(pool_->rows_used(), written_.size());
    CHECK_EQ(pool_->rows_backed(), pool_->rows_used() + pool_->rows_free_backed());
    CHECK_EQ(tracked_->live().mapped_bytes, pool_->mapped_bytes());
    CHECK(client_->used_bytes() >= static_cast<std::int64_t>(pool_->mapped_bytes()));
    CHECK(client_->used_bytes() + others_bytes_ <= ledger_.budget_bytes());
    for (const auto& [id, stamp] : written_) {
      for (std::size_t s = 0; s < pool_->geometry().stripes(); ++s)
        CHECK_EQ(*rows::cell(*pool_, s, id), content(id, s));
    }
  }

  char content(std::int64_t id, std::size_t stripe) const {
    return static_cast<char>(written_.at(id) * 31 + stripe);
  }

  std::mt19937 random_;
  const LedgerFolder folder_;
  std::shared_ptr<TrackedVmm> tracked_;
  std::shared_ptr<FaultyVmm> vmm_;
  std::int64_t page_bytes_;
  Ledger ledger_;
  std::shared_ptr<LedgerClient> client_;
  std::shared_ptr<LedgerClient> other_;
  std::unique_ptr<KvPool> pool_;
  std::map<std::int64_t, std::size_t> written_;  // held rows, with a stamp of their own
  std::size_t stamp_ = 0;
  std::int64_t others_bytes_ = 0;
  long failures_ = 0;
};

long live(const Kit& kit, bool with_faults) {
  long failures = 0;
  for (const PagePolicy policy : {PagePolicy::best_fit, PagePolicy::most_filled}) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      History history(kit, policy, seed);
      for (int step = 0; step < 150 && testing::failures_in_test() == 0; ++step) history.step(with_faults);
      history.end();
      failures += history.failures();
    }
  }
  return failures;
}

}  // namespace

TEST_EACH_BACKEND(pool_agrees_with_a_model_over_random_histories) { CHECK_EQ(live(kit, false), 0); }

TEST_EACH_BACKEND(pool_agrees_with_a_model_while_calls_fail) { CHECK(live(kit, true) > 20); }
