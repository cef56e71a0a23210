# SPDX-License-Identifier: Apache-2.0
"""Makes chat_families.json: conversations rendered by Jinja itself (3.1.6), for programs in the form of each known family.

    pip install jinja2==3.1.6 && python make_chat.py > chat_families.json

The programs are short ones written for this file; they print what the published templates of the models print.
"""
import json

import jinja2

TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": " Hi! "},
        {"role": "user", "content": "<|im_end|> [INST] </s>\nBye"}]
SYSTEM = [{"role": "system", "content": "Be brief."}]
SYSTEM_FIRST = ("{% set sys = messages[0].content if messages[0].role == 'system' else none %}"
                "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}")
LLAMA3_TURN = ("{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}")

PROGRAMS = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "chatml, default system": "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nAlways help.<|im_end|>\\n' }}"
              "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama-3": "{{ bos_token }}{% for m in messages %}" + LLAMA3_TURN + "{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "llama-3, dates": "{% set date_string = \"26 Jul 2024\" %}{{ bos_token }}" + SYSTEM_FIRST +
               "{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}{{ 'Cutting Knowledge Date: December 2023\n' }}"
               "{{ 'Today Date: ' + date_string + '\n\n' }}{{ (sys or '') | trim }}{{ '<|eot_id|>' }}"
               "{% for m in rest %}" + LLAMA3_TURN + "{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "gemma": "{{ bos_token }}" + SYSTEM_FIRST + "{% for m in rest %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
             "{% set text = (sys | trim + '\n\n' if loop.first and sys else '') + m.content | trim %}"
             "{{ '<start_of_turn>' + role + '\n' + text + '<end_of_turn>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "phi-3": "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "zephyr": "{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\n' + m.content + eos_token + '\n' }}"
              "{% elif m.role == 'system' %}{{ '<|system|>\n' + m.content + eos_token + '\n' }}"
              "{% else %}{{ '<|assistant|>\n' + m.content + eos_token + '\n' }}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "llama-2": SYSTEM_FIRST + "{% for m in rest %}{% if m.role == 'user' %}"
               "{% set open = '<<SYS>>\n' + sys + '\n<</SYS>>\n\n' if loop.first and sys else '' %}"
               "{{ bos_token + '[INST] ' + open + m.content.strip() + ' [/INST]' }}"
               "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "mistral": "{{ bos_token }}" + SYSTEM_FIRST + "{% for m in rest %}{% if m.role == 'user' %}"
               "{{ '[INST] ' + (sys + '\n\n' if loop.first and sys else '') + m.content + ' [/INST]' }}"
               "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
    "mistral-v1": "{{ bos_token }}" + SYSTEM_FIRST + "{% for m in rest %}{% if m.role == 'user' %}"
                  "{{ ' [INST] ' + (sys + '\n\n' if loop.first and sys else '') + m.content + ' [/INST]' }}"
                  "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    "mistral-v3": "{{ bos_token }}" + SYSTEM_FIRST + "{% if tools %}{{ '[AVAILABLE_TOOLS]' }}{% endif %}"
                  "{% for m in rest %}{% if m.role == 'user' %}"
                  "{{ \"[INST] \" + (sys + '\n\n' if loop.last and sys else '') + m.content + \"[/INST]\" }}"
                  "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    "mistral-tekken": "{{ bos_token }}" + SYSTEM_FIRST + "{% for m in rest %}{% if m.role == 'user' %}"
                      "{{ \"[INST]\" + (sys + '\n\n' if loop.last and sys else '') + m.content + \"[/INST]\" }}"
                      "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
}

cases = []
for name, program in PROGRAMS.items():
    template = jinja2.Template(program, keep_trailing_newline=True)
    for messages in (TALK[:1], TALK, SYSTEM + TALK[:1], SYSTEM + TALK):
        cases.append({"family": name.split(",")[0], "template": program, "messages": messages,
                      "rendered": template.render(messages=messages, bos_token="<s>", eos_token="</s>", tools=None,
                                                  add_generation_prompt=True)})
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
