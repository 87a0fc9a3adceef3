#include "program/data_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <executorch/extension/flat_tensor/serialize/flat_tensor_header.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_dimension_limit.h>

#include "generated/flat_tensor_generated.h"

namespace etshared::runtime {
namespace {

namespace fb = ::flat_tensor_flatbuffer;
using ::executorch::extension::FlatTensorHeader;

bool is_inside(uint64_t offset, uint64_t size, uint64_t total) {
  return offset <= total && size <= total - offset;
}

/// Bytes of a tensor; absent when it is no layout that ExecuTorch can have.
std::optional<uint64_t> nbytes_of(const fb::TensorLayout& layout) {
  const auto scalar_type = static_cast<ScalarType>(layout.scalar_type());
  if (layout.sizes() == nullptr || layout.dim_order() == nullptr ||
      layout.sizes()->size() != layout.dim_order()->size() ||
      layout.sizes()->size() > et::kTensorDimensionLimit ||
      !et::isValid(scalar_type)) {
    return std::nullopt;
  }
  uint64_t nbytes = et::elementSize(scalar_type);
  uint32_t dims_seen = 0;
  for (uint32_t i = 0; i < layout.sizes()->size(); ++i) {
    const int32_t size = layout.sizes()->Get(i);
    const uint8_t dim = layout.dim_order()->Get(i);
    if (size < 0 ||
        __builtin_mul_overflow(nbytes, static_cast<uint64_t>(size), &nbytes)) {
      return std::nullopt;
    }
    dims_seen |= dim < 32 ? 1u << dim : 0u;
  }
  if (dims_seen != (1u << layout.sizes()->size()) - 1) {
    return std::nullopt;
  }
  return nbytes;
}

} // namespace

Status DataFiles::add(
    std::shared_ptr<const FileBytes> bytes,
    const std::string& name) {
  const std::string suffix = name.empty() ? "" : concat(' ', name);
  const auto damaged = [&](const std::string& what) {
    return Failure{
        FailureKind::kProgramFormat,
        concat("damaged data file", suffix, ": ", what)};
  };
  if (bytes->size() < FlatTensorHeader::kNumHeadBytes ||
      !fb::FlatTensorBufferHasIdentifier(bytes->data())) {
    return Failure{
        FailureKind::kProgramFormat,
        concat(
            "not a data file", suffix, ": no identifier ",
            quoted(fb::FlatTensorIdentifier()), " at byte 4")};
  }
  const auto header =
      FlatTensorHeader::Parse(bytes->data(), FlatTensorHeader::kNumHeadBytes);
  if (!header.ok() ||
      !is_inside(
          header->flatbuffer_offset, header->flatbuffer_size, bytes->size()) ||
      !is_inside(
          header->segment_base_offset, header->segment_data_size,
          bytes->size())) {
    return damaged("its header does not fit it");
  }
  // The header stands inside of the tables, behind their first eight bytes.
  flatbuffers::Verifier verifier(
      bytes->data(), header->flatbuffer_offset + header->flatbuffer_size);
  if (!fb::VerifyFlatTensorBuffer(verifier)) {
    return damaged("its tables are not well-formed");
  }
  const fb::FlatTensor& tables = *fb::GetFlatTensor(bytes->data());
  if (tables.segments() == nullptr || tables.named_data() == nullptr) {
    return damaged("it has no list of data");
  }
  const uint8_t* segments = bytes->data() + header->segment_base_offset;
  for (const fb::NamedData* source : *tables.named_data()) {
    if (source->key() == nullptr ||
        source->segment_index() >= tables.segments()->size()) {
      return damaged("something in it has no key or no data");
    }
    const std::string key = source->key()->str();
    const fb::DataSegment& segment =
        *tables.segments()->Get(source->segment_index());
    if (!is_inside(
            segment.offset(), segment.size(), header->segment_data_size)) {
      return damaged(
          concat("the data of ", quoted(key), " lie outside"));
    }
    Entry entry{
        {segments + segment.offset(), static_cast<size_t>(segment.size())},
        std::nullopt};
    if (const fb::TensorLayout* layout = source->tensor_layout()) {
      const auto nbytes = nbytes_of(*layout);
      if (!nbytes || *nbytes > segment.size()) {
        return damaged(concat(
            "the data of ", quoted(key),
            " do not fit the tensor that they are"));
      }
      entry.layout = Layout{
          {layout->sizes()->begin(), layout->sizes()->end()},
          {layout->dim_order()->begin(), layout->dim_order()->end()},
          static_cast<ScalarType>(layout->scalar_type())};
    }
    const auto [position, is_new] = entries_.try_emplace(key, std::move(entry));
    if (!is_new) {
      return Failure{
          FailureKind::kProgramFormat,
          concat(
              "data file", suffix, " holds ", quoted(key),
              ", as it or a file before it does already")};
    }
    keys_.push_back(position->first.c_str());
  }
  files_.push_back(std::move(bytes));
  return success();
}

et::Result<const et::TensorLayout> DataFiles::get_tensor_layout(
    std::string_view key) const {
  const auto position = entries_.find(key);
  if (position == entries_.end() || !position->second.layout) {
    return et::Error::NotFound;
  }
  const Layout& layout = *position->second.layout;
  return et::TensorLayout::create(
      {layout.sizes.data(), layout.sizes.size()},
      {layout.dim_order.data(), layout.dim_order.size()},
      layout.scalar_type);
}

et::Result<et::FreeableBuffer> DataFiles::get_data(std::string_view key) const {
  const auto position = entries_.find(key);
  if (position == entries_.end()) {
    return et::Error::NotFound;
  }
  const et::Span<const uint8_t>& data = position->second.data;
  return et::FreeableBuffer(data.data(), data.size(), /*free_fn=*/nullptr);
}

et::Error DataFiles::load_data_into(
    std::string_view key,
    void* buffer,
    size_t size) const {
  const auto position = entries_.find(key);
  if (position == entries_.end()) {
    return et::Error::NotFound;
  }
  const et::Span<const uint8_t>& data = position->second.data;
  if (size > data.size()) {
    return et::Error::InvalidExternalData;
  }
  std::memcpy(buffer, data.data(), size);
  return et::Error::Ok;
}

et::Result<uint32_t> DataFiles::get_num_keys() const {
  return static_cast<uint32_t>(keys_.size());
}

et::Result<const char*> DataFiles::get_key(uint32_t index) const {
  if (index >= keys_.size()) {
    return et::Error::InvalidArgument;
  }
  return keys_[index];
}

} // namespace etshared::runtime
