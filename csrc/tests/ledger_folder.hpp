#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

// A private folder for one test's ledger, gone with it.
class LedgerFolder {
 public:
  LedgerFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvcached-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
    folder_ = pattern;
  }
  LedgerFolder(const LedgerFolder&) = delete;
  LedgerFolder& operator=(const LedgerFolder&) = delete;
  ~LedgerFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string path() const { return folder_ + "/device.ledger"; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};
