#include "program/data_files.h"

#include <cstring>
#include <utility>

#include <executorch/extension/flat_tensor/serialize/flat_tensor_header.h>

#include "generated/flat_tensor_generated.h"

namespace etshared::runtime {
namespace {

namespace fb = ::flat_tensor_flatbuffer;
using ::executorch::extension::FlatTensorHeader;

/// Absent when ExecuTorch can have no such tensor in so many bytes.
std::optional<TensorLayout> read_layout(
    const fb::TensorLayout& source,
    uint64_t most_nbytes) {
  if (source.sizes() == nullptr || source.dim_order() == nullptr) {
    return std::nullopt;
  }
  TensorLayout layout{
      {source.sizes()->begin(), source.sizes()->end()},
      {source.dim_order()->begin(), source.dim_order()->end()},
      static_cast<ScalarType>(source.scalar_type())};
  const auto nbytes = dense_nbytes(layout.sizes, layout.scalar_type);
  if (!nbytes || *nbytes > most_nbytes ||
      !is_dim_order(layout.dim_order, layout.sizes.size())) {
    return std::nullopt;
  }
  return layout;
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
      entry.layout = read_layout(*layout, segment.size());
      if (!entry.layout) {
        return damaged(concat(
            "the data of ", quoted(key),
            " do not fit the tensor that they are"));
      }
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

const DataFiles::Entry* DataFiles::find(std::string_view key) const {
  const auto position = entries_.find(key);
  return position == entries_.end() ? nullptr : &position->second;
}

std::optional<uint64_t> DataFiles::nbytes(std::string_view key) const {
  const Entry* entry = find(key);
  return entry == nullptr ? std::nullopt : std::optional(entry->data.size());
}

et::Result<const et::TensorLayout> DataFiles::get_tensor_layout(
    std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr || !entry->layout) {
    return et::Error::NotFound;
  }
  const TensorLayout& layout = *entry->layout;
  return et::TensorLayout::create(
      {layout.sizes.data(), layout.sizes.size()},
      {layout.dim_order.data(), layout.dim_order.size()},
      layout.scalar_type);
}

et::Result<et::FreeableBuffer> DataFiles::get_data(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) {
    return et::Error::NotFound;
  }
  return et::FreeableBuffer(
      entry->data.data(), entry->data.size(), /*free_fn=*/nullptr);
}

et::Error DataFiles::load_data_into(
    std::string_view key,
    void* buffer,
    size_t size) const {
  const Entry* entry = find(key);
  if (entry == nullptr) {
    return et::Error::NotFound;
  }
  if (size > entry->data.size()) {
    return et::Error::InvalidExternalData;
  }
  std::memcpy(buffer, entry->data.data(), size);
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
