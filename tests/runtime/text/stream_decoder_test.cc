// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/text/utf8.h"
#include "tests/runtime/text/test_vocab.h"

namespace kvring {
namespace {

class StreamDecoderTest : public ::testing::Test {
 protected:
  std::string Feed(const std::string& bytes) {
    std::string text;
    for (const int32_t id : ByteIds(bytes)) text += decoder_.Push(id);
    return text;
  }
  const std::unique_ptr<Tokenizer> tokenizer_ = MakeTokenizer(MakeVocab("gpt-2"));
  StreamDecoder decoder_{tokenizer_.get()};
};

TEST_F(StreamDecoderTest, HoldsBackACharacterUntilItsLastByte) {
  EXPECT_EQ(decoder_.Push(ByteId('a')), "a");
  EXPECT_EQ(decoder_.Push(ByteId(0xF0)), "");
  EXPECT_EQ(decoder_.Push(ByteId(0x9F)), "");
  EXPECT_EQ(decoder_.Push(ByteId(0x98)), "");
  EXPECT_EQ(decoder_.Push(ByteId(0x80)), "\U0001F600");
  EXPECT_EQ(decoder_.Finish(), "");
}

TEST_F(StreamDecoderTest, WhatCanNoLongerBecomeACharacterIsReplaced) {
  EXPECT_EQ(Feed("\xE6\xADz"), "\uFFFDz");
  EXPECT_EQ(Feed("\xFF"), "\uFFFD");
  EXPECT_EQ(Feed("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Feed("\xE6\xAD"), "");
  EXPECT_EQ(decoder_.Finish(), "\uFFFD");
  EXPECT_EQ(decoder_.Finish(), "");
}

TEST_F(StreamDecoderTest, ControlsAndForeignIdsPrintNothing) {
  EXPECT_EQ(decoder_.Push(ByteId(0xC3)), "");
  EXPECT_EQ(decoder_.Push(kEnd), "");
  EXPECT_EQ(decoder_.Push(-1), "");
  EXPECT_EQ(decoder_.Push(tokenizer_->vocab_size()), "");
  EXPECT_EQ(decoder_.Push(ByteId(0xA9)), "\u00e9");
  EXPECT_EQ(decoder_.Push(kTool), "<tool>");
}

TEST_F(StreamDecoderTest, AnyBytesGiveWhatTheyGiveAtOnce) {
  std::mt19937 rng(1);
  const std::string alphabet = "a\xC3\xA9\xE6\xAD\xA3\xF0\x9F\x98\x80\xFF\xED\xF4\x8F";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (size_t n = rng() % 12; n > 0; --n) bytes += alphabet[rng() % alphabet.size()];
    const std::string streamed = Feed(bytes);
    ASSERT_EQ(streamed + decoder_.Finish(), ToValidUtf8(bytes));
  }
}

}  // namespace
}  // namespace kvring
