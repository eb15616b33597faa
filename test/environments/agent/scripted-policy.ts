/** A policy that says what a script has it say, token by token, with the tokenizer and template of a model that calls tools. */
import { readFileSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import { hash32 } from '../../../core/random.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import type { ServedPolicy } from '../../../core/rl/run-state.ts';
import type { Inference, SampleRequest } from '../../../backends/inference/index.ts';
import { ChatTokenizer } from '../../../engine/model/tokenizer/tokenizer.ts';
import { type PlayedPolicy, samplePolicy, turnSeed } from '../../../play/policy/sample-policy.ts';

/** Qwen's: tools in the system message, calls between tags, answers of tools as a user's. */
const template = `{%- if tools -%}{{ '<|im_start|>system\n' }}{%- if messages[0].role == 'system' -%}{{ messages[0].content + '\n' }}{%- endif -%}{%- for tool in tools -%}{{ (tool | tojson) + '\n' }}{%- endfor -%}{{ '<tool_call> json </tool_call><|im_end|>\n' }}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- elif not (tools and loop.first and m.role == 'system') -%}{{ '<|im_start|>' + m.role + '\n' + m.content }}{%- for call in m.tool_calls or [] -%}{{ '<tool_call>' + call.function.name + call.function.arguments + '</tool_call>' }}{%- endfor -%}{{ '<|im_end|>\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}`;

export function toolTokenizer(): ChatTokenizer {
  const read = (file: string): string =>
    readFileSync(new URL(`../../engine/golden/tokenizers/byte-level/${file}`, import.meta.url), 'utf8');
  const files = { tokenizer: read('tokenizer.json'), config: read('tokenizer_config.json'), chatTemplate: template };
  return new ChatTokenizer(files, 'byte-level');
}

export const tokenizer = toolTokenizer();

const encoded = new Map<string, readonly number[]>();

/** A call in the form of the template's model. */
export function callOf(name: string, args: object): string {
  return `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
}

/** A model that is asked in place of the script. */
export interface Model {
  readonly tokenizer: ChatTokenizer;
  readonly sample: Inference['sample'];
}

/** The answer to a prompt, as text. */
export type Answers = (prompt: string, request: SampleRequest) => string | Promise<string>;

export interface Script {
  readonly says: Answers | Model;
  /** False = it is called without the text of the prompt. */
  readonly readsPrompt?: boolean;
  readonly recorded?: readonly Turn[];
  readonly onTurn?: (turn: Turn) => void | Promise<void>;
  readonly signal?: AbortSignal;
  readonly maxTokens?: number;
}

/** `asked` has every request for a new turn. */
export function scriptedPolicy({
  says,
  readsPrompt = true,
  recorded = [],
  onTurn,
  signal,
  maxTokens = 4096,
}: Script): PlayedPolicy & {
  readonly asked: SampleRequest[];
} {
  const asked: SampleRequest[] = [];
  const inference: Pick<Inference, 'sample'> = {
    async sample(request) {
      asked.push(request);
      if (typeof says !== 'function') return says.sample(request);
      await setImmediate();
      const { promptTokenIds } = request;
      const prompt = readsPrompt ? tokenizer.decode(promptTokenIds, { skipSpecialTokens: false }) : '';
      const text = await says(prompt, request);
      const all = encoded.get(text) ?? tokenizer.encode(`${text}<|im_end|>`);
      encoded.set(text, all);
      const tokenIds = all.slice(0, request.maxTokens);
      return {
        tokenIds,
        logprobs: tokenIds.map((id, t) => -(hash32(request.seed, id, t) % 1000) / 1000),
        finishReason: tokenIds.length < all.length ? 'length' : 'stop',
      };
    },
  };
  const policy = samplePolicy(
    {
      inference,
      tokenizer: typeof says === 'function' ? tokenizer : says.tokenizer,
      served: { version: { step: 3 } } as ServedPolicy,
      sampling: {
        maxTokens,
        temperature: 1,
        topP: 1,
        topK: null,
        minP: 0,
        repetitionPenalty: 1,
        presencePenalty: 0,
        frequencyPenalty: 0,
        minTokens: 0,
        stop: [],
        templateArguments: {},
        seed: null,
      },
      recorded,
      ...(signal ? { signal } : {}),
      ...(onTurn ? { onTurn } : {}),
    },
    (turn) => turnSeed(7, turn),
  );
  return Object.assign(policy, { asked });
}
