#include "program/constant_addresses.h"

namespace etshared::runtime {
namespace {

thread_local const ConstantAddresses* active = nullptr;

} // namespace

ConstantAddresses::Scope::Scope(ConstantAddresses& addresses) {
  addresses.start_delegate();
  active = &addresses;
}

ConstantAddresses::Scope::~Scope() {
  active = nullptr;
}

bool ConstantAddresses::is_active() const {
  return active == this;
}

void ConstantAddresses::start_delegate() {
  for (auto& [offset, again] : again_) {
    again.num_used = 0;
  }
}

const uint8_t* ConstantAddresses::address(size_t offset, size_t size) {
  const auto position = again_.find(offset);
  if (position == again_.end() || size == 0) {
    return bytes_->data() + offset;
  }
  Again& again = position->second;
  const size_t number = again.num_used++;
  if (number == 0) {
    return bytes_->data() + offset;
  }
  if (number > again.mappings.size()) {
    Mapping mapping = bytes_->map_again(offset, size);
    if (!mapping) {
      return nullptr;
    }
    again.mappings.push_back(std::move(mapping));
  }
  return again.mappings[number - 1].data();
}

} // namespace etshared::runtime
