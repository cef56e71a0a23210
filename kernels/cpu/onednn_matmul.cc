// SPDX-License-Identifier: Apache-2.0
// Products through oneDNN with weights packed once. All row counts of a shape use the packed layout that the library
// chose for 64 rows; one primitive per row count, made when first needed. Primitives are made and run on one thread:
// the library splits sums over threads when it may, which would make bits depend on the thread count.
#include <omp.h>

#include <array>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/cpu/matmul_shape.h"

namespace kvring {
namespace {

using dnnl::memory;

const dnnl::engine& CpuEngine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

memory::data_type ElementType(LinearMath math) {
  return math == LinearMath::kF32    ? memory::data_type::f32
         : math == LinearMath::kBf16 ? memory::data_type::bf16
                                     : memory::data_type::s8;
}

// One row count of a shape.
struct Product {
  memory::desc x, y, scratch;
  dnnl::matmul matmul;
};

class OnednnShape : public MatmulShape {
 public:
  explicit OnednnShape(const MatmulKey& key) : key_(key) {
    const memory::desc any({key.k, key.n}, ElementType(key.math), memory::format_tag::any);
    packed_ = Describe(kMatmulRows, any).weights_desc();
    ForRows(kMatmulRows);
  }

  int64_t packed_bytes() const override { return static_cast<int64_t>(packed_.get_size()); }

  bool Pack(const void* w, uint8_t* packed) const override try {
    const OneThread one;
    // [n][k] as stored is [k][n] with the first index running fastest.
    const memory::desc plain({key_.k, key_.n}, ElementType(key_.math), memory::format_tag::ba);
    memory from(plain, CpuEngine(), const_cast<void*>(w));
    memory to(packed_, CpuEngine(), packed);
    dnnl::stream stream(CpuEngine());
    dnnl::reorder(from, to).execute(stream, from, to);
    stream.wait();
    return true;
  } catch (const dnnl::error&) {
    return false;
  }

  bool Run(const void* x, int64_t rows, const uint8_t* packed, void* y) const override try {
    const OneThread one;
    const Product& product = ForRows(rows);
    thread_local dnnl::stream stream(CpuEngine());
    thread_local AlignedBytes scratch;
    thread_local size_t scratch_bytes = 0;
    if (product.scratch.get_size() > scratch_bytes) {
      scratch_bytes = product.scratch.get_size();
      scratch = AllocateAligned(static_cast<int64_t>(scratch_bytes));
    }
    product.matmul.execute(
        stream, {{DNNL_ARG_SRC, memory(product.x, CpuEngine(), const_cast<void*>(x))},
                 {DNNL_ARG_WEIGHTS, memory(packed_, CpuEngine(), const_cast<uint8_t*>(packed))},
                 {DNNL_ARG_DST, memory(product.y, CpuEngine(), y)},
                 {DNNL_ARG_SCRATCHPAD, memory(product.scratch, CpuEngine(), scratch.get())}});
    stream.wait();
    return true;
  } catch (const dnnl::error&) {
    return false;
  }

 private:
  dnnl::matmul::primitive_desc Describe(int64_t rows, const memory::desc& weights) const {
    const OneThread one;
    const auto out =
        key_.math == LinearMath::kInt8 ? memory::data_type::s32 : memory::data_type::f32;
    const memory::desc x({rows, key_.k}, ElementType(key_.math), memory::format_tag::ab);
    // Dense rows: for any other stride this library has no product with packed weights.
    const memory::desc y({rows, key_.n}, out, memory::format_tag::ab);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return {{x, weights, y}, attr, CpuEngine()};
  }

  const Product& ForRows(int64_t rows) const {
    std::call_once(made_[rows], [&] {
      const auto desc = Describe(rows, packed_);
      products_[rows] = std::make_unique<Product>(
          Product{desc.src_desc(), desc.dst_desc(), desc.scratchpad_desc(), dnnl::matmul(desc)});
    });
    return *products_[rows];
  }

  MatmulKey key_;
  memory::desc packed_;
  mutable std::array<std::once_flag, kMatmulRows + 1> made_;
  mutable std::array<std::unique_ptr<Product>, kMatmulRows + 1> products_;
};

}  // namespace

std::shared_ptr<const MatmulShape> MakeOnednnShape(const MatmulKey& key) try {
  return std::make_shared<OnednnShape>(key);
} catch (const dnnl::error&) {
  return nullptr;
}

}  // namespace kvring
