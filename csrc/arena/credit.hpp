#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ledger/client.hpp"

namespace kvcached {

// What one owner of memory has claimed from a client of the ledger. Claimed before memory is made, given back
// after it is gone: never less than is held. The client cannot be closed meanwhile. Without a client
// everything is granted.
class Credit {
 public:
  explicit Credit(std::shared_ptr<LedgerClient> client) : client_(std::move(client)) {
    if (client_) client_->attach();
  }
  Credit(const Credit&) = delete;
  Credit& operator=(const Credit&) = delete;
  ~Credit() { let_go(); }

  LedgerClient* client() const noexcept { return client_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }  // 0 without a client

  bool try_claim(std::size_t bytes) {
    if (!client_) return true;
    if (!client_->try_claim(static_cast<std::int64_t>(bytes))) return false;
    bytes_ += bytes;
    return true;
  }
  // Gives back what exceeds `held_bytes`.
  void settle(std::size_t held_bytes) {
    if (bytes_ <= held_bytes) return;
    client_->release(static_cast<std::int64_t>(bytes_ - held_bytes));
    bytes_ = held_bytes;
  }
  // Gives all back and lets the client go.
  void close() {
    if (client_ && client_->is_open()) client_->release(static_cast<std::int64_t>(bytes_));
    bytes_ = 0;
    let_go();
  }
  // Held, limit, and who holds the rest.
  std::string explain() const { return client_ ? client_->explain() : "no ledger limits it"; }

 private:
  void let_go() noexcept {
    if (client_) client_->detach();
    client_.reset();
  }

  std::shared_ptr<LedgerClient> client_;
  std::size_t bytes_ = 0;
};

}  // namespace kvcached
