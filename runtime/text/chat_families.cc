// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/chat_families.h"

#include <algorithm>

namespace kvring {
namespace {

using enum SystemStyle;

// Forms follow the templates that the models' makers publish with them.
std::vector<ChatFamily> MakeFamilies() {
  return {
      {"chatml",
       {"<|im_start|>", "<|im_end|>"},
       {"<|im_sep|>"},  // Phi-4 ends its role marks in another way
       kOwnTurn,
       "{<|im_start|>}system\n",
       "{<|im_end|>}\n",
       "{<|im_start|>}user\n",
       "{<|im_end|>}\n",
       "{<|im_start|>}assistant\n",
       "{<|im_end|>}\n",
       "{<|im_start|>}assistant\n",
       false},
      {"llama-3",
       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       {},
       kOwnTurn,
       "{<|start_header_id|>}system{<|end_header_id|>}\n\n",
       "{<|eot_id|>}",
       "{<|start_header_id|>}user{<|end_header_id|>}\n\n",
       "{<|eot_id|>}",
       "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n",
       "{<|eot_id|>}",
       "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n",
       true},
      {"gemma",
       {"<start_of_turn>"},
       {},
       kFirstUser,  // Gemma has no system role: its makers put such text before the first question
       "",
       "\n\n",
       "{<start_of_turn>}user\n",
       "{<end_of_turn>}\n",
       "{<start_of_turn>}model\n",
       "{<end_of_turn>}\n",
       "{<start_of_turn>}model\n",
       true},
      {"phi-3",
       {"<|assistant|>", "<|end|>"},
       {"[gMASK]"},
       kOwnTurn,
       "{<|system|>}\n",
       "{<|end|>}\n",
       "{<|user|>}\n",
       "{<|end|>}\n",
       "{<|assistant|>}\n",
       "{<|end|>}\n",
       "{<|assistant|>}\n",
       false},
      {"zephyr",
       {"<|user|>", "<|assistant|>", "eos_token"},
       {"[gMASK]", "<|end|>"},
       kOwnTurn,
       "{<|system|>}\n",
       "{eos}\n",
       "{<|user|>}\n",
       "{eos}\n",
       "{<|assistant|>}\n",
       "{eos}\n",
       "{<|assistant|>}\n",
       false},
      {"llama-2",
       {"[INST]", "<<SYS>>"},
       {"[SYSTEM_PROMPT]"},
       kFirstUser,
       "<<SYS>>\n",
       "\n<</SYS>>\n\n",
       "{[INST]} ",
       " {[/INST]}",
       " ",
       " {eos}",
       "",
       true},
      {"mistral-tekken",
       {"\"[INST]\"", "[/INST]"},
       {"[SYSTEM_PROMPT]"},
       kLastUser,
       "",
       "\n\n",
       "{[INST]}",
       "{[/INST]}",
       "",
       "{eos}",
       "",
       false},
      {"mistral-v3",
       {"[INST]", "[/INST]", "[AVAILABLE_TOOLS]"},
       {"[SYSTEM_PROMPT]"},
       kLastUser,
       "",
       "\n\n",
       "{[INST]} ",
       "{[/INST]}",
       " ",
       "{eos}",
       "",
       false},
      {"mistral-v1",
       {"' [INST] '", "[/INST]"},
       {"[SYSTEM_PROMPT]"},
       kFirstUser,
       "",
       "\n\n",
       " {[INST]} ",
       " {[/INST]}",
       " ",
       "{eos}",
       "",
       false},
      {"mistral",
       {"[INST]", "[/INST]"},
       {"[SYSTEM_PROMPT]"},
       kFirstUser,
       "",
       "\n\n",
       "{[INST]} ",
       " {[/INST]}",
       "",
       "{eos}",
       "",
       false},
  };
}

void CollectMarks(const std::string& form, std::vector<std::string>* marks) {
  for (size_t open = form.find('{'); open != std::string::npos; open = form.find('{', open + 1)) {
    const std::string mark = form.substr(open + 1, form.find('}', open) - open - 1);
    const bool is_new = std::find(marks->begin(), marks->end(), mark) == marks->end();
    if (mark != "bos" && mark != "eos" && is_new) marks->push_back(mark);
  }
}

std::vector<std::string> MakeMarks() {
  std::vector<std::string> marks;
  for (const ChatFamily& family : ChatFamilies()) {
    for (const char* form :
         {family.system_open, family.system_close, family.user_open, family.user_close,
          family.assistant_open, family.assistant_close, family.generation}) {
      CollectMarks(form, &marks);
    }
  }
  return marks;
}

}  // namespace

const std::vector<ChatFamily>& ChatFamilies() {
  static const std::vector<ChatFamily> families = MakeFamilies();
  return families;
}

const std::vector<std::string>& ChatMarks() {
  static const std::vector<std::string> marks = MakeMarks();
  return marks;
}

}  // namespace kvring
