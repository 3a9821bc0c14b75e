#include "fault_drill.hpp"

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "backends.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "vmm/cuda_driver.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/error.hpp"

namespace drill {
namespace {

using namespace kvcached;
using backends::standin;

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("the drill itself went wrong: ") + what);
}

std::string look_at(const Life& life) {
  try {
    return life.look();
  } catch (const std::exception& error) {
    return std::string("broken: ") + error.what();
  }
}

using MakeLife = std::function<std::unique_ptr<Life>(std::shared_ptr<LedgerClient>)>;

template <typename Kind>
std::unique_ptr<Life> make_life(std::shared_ptr<LedgerClient> client) {
  return std::make_unique<Kind>([] { return std::make_shared<CudaVmm>(1, /*exportable=*/true); },
                                std::move(client));
}

// One life whose `nth` driver call answers `code`; nth = 0: none does. The last call of a life releases the
// context, past all steps: a driver that refuses it keeps the context, and nothing else may stay.
void live_once(const Ledger& ledger, const MakeLife& make, long nth, int code, bool is_last,
               Figures& figures) {
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"drill", 0, std::nullopt, 0});
  const backends::Standin& driver = standin();
  const long injected_before = driver.state().injected;
  {
    const std::unique_ptr<Life> life = make(client);
    driver.fail("", nth, code);
    const Passage passage = live(*life, [&] {
      figures.leaks += client->used_bytes() < driver.state().held_bytes ? 1 : 0;
      driver.mend();
    });
    figures.state_changes += passage.state_changes;
    figures.failed_retries += passage.failed_retries;
    if (figures.complaint.empty()) figures.complaint = passage.complaint;
  }
  driver.mend();
  const StandinState left = driver.state();
  figures.injected += left.injected - injected_before;
  figures.leaks += left.allocations + left.mappings + left.reservations + left.contexts - (is_last ? 1 : 0);
  if (client->used_bytes() != 0) {
    ++figures.leaks;
    if (figures.complaint.empty()) {
      figures.complaint = "a life ended with " + std::to_string(client->used_bytes()) + " bytes of credit";
    }
  }
  figures.rule_violations += left.violations;
  if (left.violations != 0 && figures.complaint.empty()) figures.complaint = driver.last_violation();
  driver.reset();
}

}  // namespace

Geometry geometry_for(const Vmm& vmm) {
  const auto granularity_bytes = static_cast<std::int64_t>(vmm.capabilities().granularity_bytes);
  GeometrySpec spec;
  spec.rows = 168;
  spec.row_bytes.assign(3, granularity_bytes / 16);
  spec.granularity_bytes = granularity_bytes;
  spec.page_bytes = granularity_bytes;
  return Geometry(spec);
}

std::vector<std::function<void()>> PoolLife::steps() {
  return {
      [this] { vmm_ = make_(); },
      [this] { pool_ = std::make_unique<KvPool>(vmm_, geometry_for(*vmm_), client_); },
      [this] { require(pool_->grow(70), "grow"); },
      [this] {
        ids_.resize(50);
        require(pool_->alloc(50, ids_.data()), "alloc");
      },
      [this] {
        pool_->free(ids_.data() + 5, 45);
        ids_.resize(5);
      },
      [this] { pool_->trim(0); },
      [this] { require(pool_->grow(100), "grow"); },
      [this] { pool_->clear(); },
      [this] { pool_->close(); },
  };
}

std::string PoolLife::look() const {
  std::ostringstream seen;
  seen << "credit " << client_->used_bytes() << (vmm_ ? ", backend" : "");
  if (!pool_) return seen.str();
  if (pool_->is_closed()) return seen.str() + ", pool closed";
  pool_->check_invariants();
  const PoolStats s = pool_->stats();
  seen << ", rows " << s.rows_used << ' ' << s.rows_free_backed << ' ' << s.rows_backed << ' '
       << s.rows_obtainable << ' ' << s.rows_attainable << ", mapped " << s.mapped_bytes << ", calls "
       << s.maps << ' ' << s.unmaps << ' ' << s.allocs << ' ' << s.frees;
  return seen.str();
}

std::vector<std::function<void()>> RangeLife::steps() {
  const auto page = [this] { return vmm_->capabilities().granularity_bytes; };
  return {
      [this] { vmm_ = make_(); },
      [this, page] { range_ = std::make_unique<VirtualRange>(vmm_, 8 * page(), page(), client_); },
      [this, page] { range_->map(page(), 4 * page()); },
      [this, page] { std::memset(reinterpret_cast<void*>(range_->base() + page()), 1, 4 * page()); },
      [this, page] {
        if (vmm_->capabilities().exportable) range_->export_page(2 * page());
      },
      [this, page] { range_->unmap(2 * page(), 2 * page()); },
      [this, page] { range_->map(2 * page(), page()); },
      [this] { range_->close(); },
  };
}

std::string RangeLife::look() const {
  std::ostringstream seen;
  seen << "credit " << client_->used_bytes() << (vmm_ ? ", backend" : "");
  if (range_) seen << ", mapped " << range_->mapped_bytes() << (range_->is_closed() ? ", closed" : "");
  return seen.str();
}

Passage live(Life& life, const std::function<void()>& mend) {
  Passage passage;
  std::size_t number = 0;
  for (const auto& step : life.steps()) {
    ++number;
    const std::string before = look_at(life);
    try {
      step();
      continue;
    } catch (const Error& error) {
      ++passage.failures;
      const std::string after = look_at(life);
      mend();
      // A close that fails says so and has changed one thing: nothing but another close is possible.
      if (after != before && after.find("closed") == std::string::npos) {
        ++passage.state_changes;
        passage.complaint = "step " + std::to_string(number) + " failed (" + error.what() + ") and made '" +
                            before + "' into '" + after + "'";
      }
    }
    try {
      step();
    } catch (const Error& error) {
      ++passage.failed_retries;
      passage.complaint = "step " + std::to_string(number) + " failed again: " + error.what();
      return passage;
    }
  }
  return passage;
}

Figures fail_cuda_init() {
  Figures figures;
  for (const int code : {cuda::kOutOfMemory, cuda::kInvalidValue}) {
    const bool is_survived = backends::holds_in_child([&] {
      const backends::Standin& driver = standin();
      driver.fail("cuInit", 1, code);
      for (int attempt = 0; attempt < 2; ++attempt) {  // the answer stands for the whole process
        try {
          const CudaVmm vmm(1, /*exportable=*/true);
          return false;
        } catch (const Unavailable& error) {
          if (std::string(error.what()).find("cuInit(0) failed") == std::string::npos) return false;
        }
      }
      const StandinState left = driver.state();
      return left.injected == 1 && left.violations == 0 && left.contexts == 0 && left.allocations == 0;
    });
    ++figures.driver_calls;
    figures.injected += is_survived ? 1 : 0;
    if (!is_survived) figures.complaint = "a driver whose cuInit fails is not reported as unavailable";
  }
  return figures;
}

Figures fail_every_driver_call() {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), std::int64_t{1} << 36);
  Figures figures;
  standin();
  cuda::driver();  // cuInit is no call of a life
  for (const MakeLife& make : {MakeLife(make_life<PoolLife>), MakeLife(make_life<RangeLife>)}) {
    const long before = standin().calls("");
    live_once(ledger, make, 0, cuda::kSuccess, /*is_last=*/false, figures);
    const long calls = standin().calls("") - before;
    for (const int code : {cuda::kOutOfMemory, cuda::kInvalidValue}) {
      figures.driver_calls += calls;
      for (long nth = 1; nth <= calls; ++nth) live_once(ledger, make, nth, code, nth == calls, figures);
    }
  }
  return figures;
}

}  // namespace drill
