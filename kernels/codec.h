// SPDX-License-Identifier: Apache-2.0
// A codec: how keys and values of one block become a page of bytes, and how attention reads them.
//
// Units. A block is block_tokens (64) consecutive tokens of a sequence. A page is one block of one (layer, KV head): the
// K part, then the V part, self-contained, no header. Sizes are static per (codec, layer, head). Inside a page, token t
// of the block sits at slot t, written once; encoding one by one equals encoding in bulk, bit for bit.
//
// Domains. Rows reach a codec in the *key domain* it declares (before or after RoPE) and in its *value domain* (values
// after ToValueDomain: rot's Hadamard rotation; the identity for most). Exact rows are kept in these domains as fp16;
// codecs that are not `lossless` only ever see fp16-representable numbers.
// Query domain: a tile of decoded keys is in the codec's query domain; PrepareQuery brings a query (after RoPE) there, so
// that the score is a plain dot product.
//
// A codec is immutable after creation and thread-safe. Errors: Encode reports what data alone can show; all else is a
// precondition.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec_tables.h"
#include "kernels/error.h"
#include "kernels/half.h"
#include "kernels/rope.h"

namespace kvring {

struct AttendArgs;
struct AttendScratch;
struct PackedQueries;
struct SoftmaxPartial;

struct KvShape {
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int dk = 0;  // key head_dim
  int dv = 0;  // value head_dim
  int block_tokens = 64;
  int group() const { return query_heads / kv_heads; }
};

// What a parameter of the code belongs to, and so when a token can be encoded: at once (kToken, kModel), when its block
// is complete (kPage), or when the first prefix_tokens of the sequence exist (kPrefix).
enum class ParamScope : uint8_t { kToken, kPage, kPrefix, kModel };
enum class KeyDomain : uint8_t { kPreRope, kPostRope };

struct CodecTraits {
  std::string id;   // canonical name, options included: "rot4", "nf3:post-rope"
  int version = 1;  // of the page bytes
  KeyDomain key_domain = KeyDomain::kPostRope;
  ParamScope k_scope = ParamScope::kToken;
  ParamScope v_scope = ParamScope::kToken;
  bool lossless = false;  // packed rows are the rows: no exact rows, no sinks are kept (f16, f32)
  int sink_tokens = 0;    // first tokens of the sequence that stay fp16
  int prefix_tokens =
      0;  // kPrefix: tokens after which the sequence state is frozen; a multiple of the block
  int dk = 0, dv = 0;  // head sizes that this codec was made for
  // Parity forms alone (KVQuant's per-token scale, its exact container): a head's page is read together with the page of KV
  // head 0 of the same block (PageView::shared), and that one grows with what is stored. Such pages are never sent by a ring.
  bool shared_page = false;
  bool growing_page =
      false;  // the page of KV head 0 may need more than PageSize: SharedPageBytes says how much
  uint64_t tables_hash =
      0;  // of the calibrated tables; pages of other tables cannot be read. 0: none

  bool page_scoped() const { return k_scope == ParamScope::kPage || v_scope == ParamScope::kPage; }
};

struct PageBytes {
  int64_t k = 0, v = 0;
  int64_t total() const { return k + v; }
};

// One block of one (layer, KV head) as attention sees it. Parts that do not exist are null: `packed` before it is
// encoded, `exact_*` after its cell has closed, `sink_*` outside the first block.
struct PageView {
  const uint8_t* packed = nullptr;  // K part, then V part
  const uint8_t* shared = nullptr;  // packed page of KV head 0 of this block; set when `packed` is
  const Half* exact_k = nullptr;    // [tokens][exact_k_stride], key domain
  const Half* exact_v = nullptr;    // [tokens][exact_v_stride], value domain
  const Half* sink_k =
      nullptr;  // [sinks][sink_k_stride], key domain: replaces slots 0..sinks-1 of the packed form
  const Half* sink_v = nullptr;  // [sinks][sink_v_stride], value domain
  int64_t exact_k_stride = 0, exact_v_stride = 0, sink_k_stride = 0, sink_v_stride = 0;
  int64_t begin = 0;  // position of slot 0
  int tokens = 0;     // slots in use
  int sinks = 0;
};

// Tokens of one block, one layer, seen before anything is encoded.
struct ObserveArgs {
  int layer = 0;
  int64_t begin = 0;         // position of the first row
  int64_t count = 0;         // rows, in token order
  const float* k = nullptr;  // [count][kv_heads][dk] before RoPE, fp16-representable
  const float* q = nullptr;  // [count][query_heads][dk] before RoPE, fp16-representable
  const float* v = nullptr;  // [count][kv_heads][dv] value domain, fp16-representable
};

struct EncodeArgs {
  int layer = 0;
  int64_t block_begin = 0;       // position of slot 0
  int first = 0, count = 0;      // slots to write; kPage codecs get whole blocks only
  const float* k = nullptr;      // [count][kv_heads][dk], key domain
  const float* v = nullptr;      // [count][kv_heads][dv], value domain
  const float* state = nullptr;  // [kv_heads][StateFloats()], null when the codec has none
  uint8_t* const* pages =
      nullptr;  // [kv_heads] K part then V part; slots outside [first, first+count) stay as they are
  int64_t* saturated =
      nullptr;                  // += values that the code could not represent in range; may be null
  int64_t* overflow = nullptr;  // += outliers that found no slot (they saturate); may be null
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual const CodecTraits& traits() const = 0;
  virtual PageBytes PageSize(int layer, int head) const = 0;

  // State of a sequence. Sums are per (layer, KV head, block), SumFloats() floats each, start as zeros, and take tokens
  // in order. Freeze derives the state of one (layer, KV head) from the sums of the prefix's blocks in block order: the
  // same bits on every rank. State values are fp16-representable; StateBytes is what checkpoints and bytes() count.
  virtual int64_t SumFloats() const { return 0; }
  virtual int64_t StateFloats() const { return 0; }
  int64_t StateBytes() const { return StateFloats() * 2; }
  virtual void Observe(const ObserveArgs& args, float* sums /* [kv_heads][SumFloats()] */) const {}
  virtual void Freeze(int layer, int head, std::span<const float* const> block_sums,
                      float* state) const {}

  // v: [tokens][kv_heads][dv] of one layer in place, into the value domain. FinishOutput is its inverse on the normalized
  // output of attention, [rows][dv] of one KV head (o / l: a mean that ToValueDomain took off comes back whole).
  virtual void ToValueDomain(int layer, float* v, int64_t tokens) const {}
  virtual void FinishOutput(int layer, int head, float* o, int64_t rows) const {}

  virtual Error Encode(const EncodeArgs& args) const = 0;

  // traits().growing_page: bytes that the page of KV head 0 must have before Encode(args), at least PageSize(layer, 0). The
  // caller grows the page, keeping its bytes and zeroing the new ones. args.pages hold the pages as they are now.
  virtual int64_t SharedPageBytes(const EncodeArgs& args) const {
    return PageSize(args.layer, 0).total();
  }

  // packed_q = raw_q in the query domain; [rows][dk] each, raw_q after RoPE. state: [StateFloats()] of this (layer, head).
  // The default copies.
  virtual void PrepareQuery(int layer, int head, const float* state, const float* raw_q,
                            int64_t rows, float* packed_q) const;

  // Brings the rows of `args` into the form that AttendPacked reads (AttendArgs::prepared), for every page that they will
  // see. False: there is no such form, or not yet; tiles are decoded then.
  virtual bool PreparePacked(const AttendArgs& args, PackedQueries& queries) const { return false; }

  // Attention of rows [first, last) of `args` over the packed form of pages, for codecs that read codes without decoding a tile
  // (integer dot products, score tables). `pages`: one or more neighbours of args.pages that all these rows read packed.
  // Returns how many of them were read, from the first on. 0: not this codec's way; AttendPages decodes a tile instead.
  virtual int64_t AttendPacked(const AttendArgs& args, std::span<const PageView> pages,
                               int64_t first, int64_t last, AttendScratch& scratch,
                               const SoftmaxPartial& partial) const {
    return 0;
  }

  // Once after the last page of a call: brings what AttendPacked kept apart in the scratch (PackedScratch::turned) into
  // `partial`.
  virtual void FinishPacked(const AttendArgs& args, AttendScratch& scratch,
                            const SoftmaxPartial& partial) const {}

  // Decoded tiles of a page, fp32. Slots from page.tokens on are zeros; sinks replace the slots they belong to.
  // kt: [dk][block_tokens] (keys as columns), query domain. v: [block_tokens][dv], value domain.
  virtual void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                          float* kt) const = 0;
  virtual void DecodeValues(int layer, int head, const float* state, const PageView& page,
                            float* v) const = 0;
};

// Options after the colon of a codec's name, e.g. {"no-mean", "post-rope", "g64"}.
struct CodecOptions {
  KvShape shape;
  std::vector<const RopeTable*> rope;  // [layers], outlive the codec
  std::vector<std::string> flags;
  std::shared_ptr<const CodecTables> tables;  // null: no calibration at hand
};

struct CodecMade {
  std::unique_ptr<Codec> codec;  // null when error is set
  std::string error;             // what is wrong and what would be right
};

// The codec table: one row a name. Adding a codec is one file and one row; the shared tests walk the table.
struct CodecRow {
  const char* name;     // "rot4"
  const char* summary;  // one line for --help
  const char* flags;    // accepted options, comma-separated
  CodecMade (*make)(const CodecRow& row, const CodecOptions& options);
  int bits;
  double outliers = 0;  // share of a vector's elements that are kept apart (nuq), half in each tail
  bool calibrated = false;  // needs CodecOptions::tables
  int rate = 0;             // tc: hundredths of a bit a coefficient; `bits` is the whole part
};
std::span<const CodecRow> AllCodecs();
// A row of the table, or that of tc@BITS for any BITS from 1 to 6 in hundredths; null when there is none.
const CodecRow* FindCodec(const std::string& name);

}  // namespace kvring
