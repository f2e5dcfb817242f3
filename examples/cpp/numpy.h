// ExecuTorch's tensors from and to numpy's files (format 1.0 of numpy.lib.format), little-endian.
#pragma once

#include <executorch/extension/tensor/tensor.h>

#include <cctype>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace numpy {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::extension::TensorPtr;

// bfloat16 is two bytes of no kind to numpy, as ml_dtypes writes it.
inline const std::pair<ScalarType, const char*> kinds[] = {
    {ScalarType::Float, "<f4"}, {ScalarType::Double, "<f8"}, {ScalarType::Half, "<f2"},
    {ScalarType::Int, "<i4"},   {ScalarType::Long, "<i8"},   {ScalarType::Short, "<i2"},
    {ScalarType::Char, "|i1"},  {ScalarType::Byte, "|u1"},   {ScalarType::Bool, "|b1"},
    {ScalarType::BFloat16, "<V2"},
};

inline TensorPtr read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const size_t header = 10 + (all.size() < 10 ? 0 : uint8_t(all[8]) + 256 * uint8_t(all[9]));
  const std::string text = all.substr(0, header);
  size_t at = text.find("'shape': (");
  if (all.compare(0, 7, "\x93NUMPY\x01") != 0 || all.size() < header || at == std::string::npos ||
      text.find("'fortran_order': True") != std::string::npos) {
    throw std::runtime_error(path + " is not there, or not an array in C order that numpy.save wrote");
  }
  std::vector<executorch::aten::SizesType> shape;
  for (at += 10; at < text.size() && text[at] != ')'; at++) {
    if (std::isdigit(uint8_t(text[at]))) {
      size_t digits = 0;
      shape.push_back(std::stoi(text.substr(at), &digits));
      at += digits - 1;
    }
  }
  for (const auto& [type, kind] : kinds) {
    if (text.find("'" + std::string(kind) + "'") != std::string::npos) {
      TensorPtr tensor = executorch::extension::empty(shape, type);
      if (tensor->nbytes() == all.size() - header) {
        all.copy(static_cast<char*>(tensor->mutable_data_ptr()), tensor->nbytes(), header);
        return tensor;
      }
    }
  }
  throw std::runtime_error(path + " has elements that ExecuTorch has no type for, or too few of them");
}

inline void write(const std::string& path, const Tensor& tensor) {
  std::string text = "{'descr': '";
  for (const auto& [type, kind] : kinds) {
    text += type == tensor.scalar_type() ? kind : "";
  }
  text += "', 'fortran_order': False, 'shape': (";
  for (auto size : tensor.sizes()) {
    text += std::to_string(size) + ",";
  }
  text += "), }";
  text.resize((10 + text.size()) / 64 * 64 + 53, ' '); // the data begins at a multiple of 64
  text += '\n';
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY\x01" << '\0' << char(text.size() % 256) << char(text.size() / 256) << text;
  const char* data = static_cast<const char*>(tensor.const_data_ptr());
  const size_t bytes = tensor.numel() ? tensor.nbytes() / tensor.numel() : 0;
  for (ssize_t i = 0; i < tensor.numel(); i++) { // in the order of its dimensions, whatever its memory's is
    ssize_t rest = i, offset = 0;
    for (ssize_t d = tensor.dim(); d-- > 0; rest /= tensor.size(d)) {
      offset += rest % tensor.size(d) * tensor.strides()[d];
    }
    file.write(data + offset * bytes, bytes);
  }
  if (!file.flush()) {
    throw std::runtime_error(path + " could not be written");
  }
}

} // namespace numpy
